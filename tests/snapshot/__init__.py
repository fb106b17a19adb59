"""Tests of the rows that a table already has."""
