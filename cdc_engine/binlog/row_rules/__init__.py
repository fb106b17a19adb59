"""Which rows of a table are captured, and what their columns show: conditions and masks of conf/, over record batches."""
