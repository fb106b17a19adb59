"""Keeps the newest part of a stream for any number of consumers, each at its own position. The stream does not wait for them."""
