"""Changes of a stretch of the past, merged once more: the fold up to what a table has, and its one commit."""
