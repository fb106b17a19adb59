"""Merges staged batches into Delta tables with Spark. Runs inside a Dagster run or from the command line, and depends on neither."""
