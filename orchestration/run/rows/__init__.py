"""Contains the operations on rows that jobs and commands start: the repair, and the backfill, which merges into the Delta tables of the
stream or builds a new Delta table.
"""
