"""Merges a segment into a Delta table in one commit: folds the row images by key, generates the SQL statements, and executes them."""
