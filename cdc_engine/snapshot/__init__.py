"""Reads the existing rows of a table in chunks while the stream continues, and publishes them with the buffered changes."""
