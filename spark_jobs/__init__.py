"""Merges staged batches into Delta tables with Spark. Dagster runs and the command line call this package. It depends on neither of
them.
"""
