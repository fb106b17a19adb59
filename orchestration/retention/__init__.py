"""Limits the size of Dagster's storage: removes old runs and events of Sluice's jobs, and returns the free space to the file system."""
