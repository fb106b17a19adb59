"""The change log and the history of a source table, which are written from the same staged batches as its current-state table."""
