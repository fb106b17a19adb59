"""Consumers that send what they get to a broker: topics and partitions as Canal's, messages as Canal's, at least once."""
