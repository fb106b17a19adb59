"""Pulls conf/ from a git repository or an archive, checks all its files together, and stores the last valid revision."""
