"""Applies the row filters and column masks of conf/ to record batches."""
