"""Contains the operations on rows that jobs and commands start: backfill, into live tables or into a new table, and repair."""
