"""The job of small tables."""
