"""Serves one consumer from several sources: merges the transactions of a group's members into one stream, in commit order."""
