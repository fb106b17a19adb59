"""Serves the consumers of a destination: Canal clients, brokers and the Python client. Each consumer has its own cursor and filter, and
waits for no other consumer.
"""
