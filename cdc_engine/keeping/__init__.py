"""Keeps the engines of a process as conf/ and its operators want them: which conf/ is in use, what was ordered, what is done about it."""
