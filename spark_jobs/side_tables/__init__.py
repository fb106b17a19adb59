"""Writes the change logs and histories of source tables, from the same staged batches as the current-state tables."""
