"""Applies the changes of an interval of the past again, for a job or a command: to the live tables, or in a new table."""
