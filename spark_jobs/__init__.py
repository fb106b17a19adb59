"""Merges staged batches into Delta tables with Spark. Dagster runs and the command line call this package. The package depends on neither
Dagster nor the command line.
"""
