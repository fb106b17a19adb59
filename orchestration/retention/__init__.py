"""Limits the size of Dagster's storage: removes old runs and events of Sluice's jobs, and returns the freed space to the file system."""
