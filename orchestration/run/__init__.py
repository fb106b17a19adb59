"""Does the work of runs: merges batches with Spark, publishes snapshots, and repairs and maintains tables."""
