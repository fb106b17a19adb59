"""A stretch of the past merged once more: by a job or a command, into the live tables or into one beside them."""
