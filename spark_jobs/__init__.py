"""Merges staged batches into Delta tables with Spark. Called by Dagster runs and from the command line, without depending on either."""
