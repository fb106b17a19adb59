"""Holds the newest part of a stream for any number of readers, each with its own position. The stream does not wait for the readers."""
