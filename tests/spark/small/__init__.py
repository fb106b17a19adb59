"""Tests the job of small tables."""
