"""Tests the work of runs."""
