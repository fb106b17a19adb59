"""Benchmarks of a destination with thousands of tables."""
