"""Writes the change log and the history of a source table, from the same staged batches as its current-state table."""
