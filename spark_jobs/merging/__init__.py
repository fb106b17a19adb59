"""Merges a segment into a Delta table in one commit: folds the images by key, generates the statements, and executes them."""
