"""Row filters and column masks of conf/, applied to record batches."""
