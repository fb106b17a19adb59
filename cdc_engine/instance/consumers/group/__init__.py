"""One consumer of several sources: the transactions of a group's members as one stream, in commit order."""
