"""Serves consumers that read several sources as one stream: merges the transactions of a group's members in commit order."""
