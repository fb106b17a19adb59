"""Does the work of runs: merges batches with Spark, publishes snapshots, repairs and maintains tables."""
