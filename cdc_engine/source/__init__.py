"""Knows the server to read from, and opens sessions on it. `parser` uses it for the dump, `snapshot` for existing rows."""
