"""Limits the size of Dagster's storage: removes old runs and events of Sluice's jobs, and returns their space to the file system."""
