"""Tests the reading of statements."""
