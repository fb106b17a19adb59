"""Measures a destination with thousands of tables."""
