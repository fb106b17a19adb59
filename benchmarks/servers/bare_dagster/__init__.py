"""A Dagster without Sluice."""
