"""Resumes and re-snapshots single tables of a destination, and starts to capture tables that conf/ newly includes."""
