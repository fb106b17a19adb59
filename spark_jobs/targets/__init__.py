"""Defines what a merge writes and where: targets and reports of tables, layouts, shards, and the choice between Spark and small merges."""
