"""Merges small tables without Spark's MERGE: chooses the way of merging, merges one table, and runs the Spark job that merges many."""
