"""Merges an interval of the past again, for a job or a command: into the live tables, or into a new table."""
