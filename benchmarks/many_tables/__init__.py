"""Measures a destination with thousands of tables, and an installation with a hundred destinations."""
