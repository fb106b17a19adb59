"""Tests of what reads the tables."""
