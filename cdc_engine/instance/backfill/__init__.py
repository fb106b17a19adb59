"""Changes of a stretch of the past, read once more: what is asked, what of it may be done, and the plan of it."""
