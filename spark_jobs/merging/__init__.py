"""Rows of a segment → one Delta commit: the fold of images by key, the statements, and the merge that runs them."""
