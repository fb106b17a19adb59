"""Serves the consumers of a destination, each with its own cursor, filter and pace."""
