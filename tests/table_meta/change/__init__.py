"""Tests the effect of a statement on a table, and what the lake follows of it."""
