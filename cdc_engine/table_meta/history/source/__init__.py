"""Reads the current schemas of the source's tables."""
