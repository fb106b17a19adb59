"""Stores the schema history by position, in memory and in its repository."""
