"""Merges of small tables without Spark's MERGE: the choice of the way, the merge of a table, and the one Spark job that merges many."""
