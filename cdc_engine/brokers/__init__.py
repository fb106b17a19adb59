"""Consumers that send what they get to a broker, at least once, with Canal's topics, partitions and messages."""
