"""Defines what a merge writes and where: targets and reports of tables, layout, shards, and the way of a merge."""
