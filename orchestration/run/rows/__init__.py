"""Operates on rows of tables, for a job or a command: applies the changes of an interval of the past again, to live tables or in a new
table, and repairs the rows that differ from the source."""
