"""Merges small tables without Spark's MERGE: deltalake merges one table (`merge`), and one Spark job merges many tables in its tasks
(`job`).
"""
