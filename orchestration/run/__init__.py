"""The work of runs: merging batches with Spark, publishing snapshots, repairing and maintaining tables."""
