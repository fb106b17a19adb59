"""Compares generated schemas, rows and damaged bytes with real servers."""
