"""Applies the row filters, column masks and transforms of conf/ to record batches."""
