"""The work of runs: merging batches with Spark, publishing snapshots, repairs and maintenance."""
