"""Merges a segment of a staged table, for example the row images of one schema version, into a Delta table in one commit: folds the row
images by key, generates the SQL statements, and executes them.
"""
