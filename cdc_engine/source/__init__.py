"""Describes the server to read from, and opens sessions on it. `parser` uses a session for the dump, `snapshot` for existing rows."""
