"""Bounds Dagster's storage: removes old runs and events of Sluice's jobs, and gives their space back to the file system."""
