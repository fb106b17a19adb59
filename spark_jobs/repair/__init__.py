"""Chosen keys of a table made what the source has under them: the fold at the place where the lake is, and its commit."""
