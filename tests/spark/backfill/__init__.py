"""Tests backfills from an archive, past states of tables, and swaps of tables."""
