"""Merges small tables without Spark's MERGE: merges one table with deltalake (`merge`), and runs the Spark job that merges many tables
(`job`)."""
