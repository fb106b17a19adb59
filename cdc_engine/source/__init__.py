"""The server to read from, and sessions on it. Used by `parser` for the dump and by `snapshot` for existing rows."""
