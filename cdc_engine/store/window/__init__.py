"""Keeps the newest part of a stream for any number of readers, each with its own position; the stream does not wait for them."""
