"""Contains the operations on rows that jobs and commands start: the repair, and the backfill, which writes to the live tables or to a new
table.
"""
