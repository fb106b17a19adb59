"""Reads the existing rows of a table in chunks while the engine reads the binlog, and publishes the rows with the buffered changes."""
