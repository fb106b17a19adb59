"""Writes change logs and histories of source tables, from the same staged batches as their current-state tables."""
