"""Names of Delta tables in a catalog of Spark."""
