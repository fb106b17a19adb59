"""Pulls conf/ from a git repository or an archive, checks it as a whole, and keeps the last good revision."""
