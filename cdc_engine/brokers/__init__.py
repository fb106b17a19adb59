"""Sends what consumers get to message brokers, at least once, with Canal's topics, partitions and messages."""
