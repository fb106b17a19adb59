"""Tests snapshots, which read the existing rows of a table from the source."""
