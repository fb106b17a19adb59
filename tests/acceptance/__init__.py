"""Tests the real programs: starts them as an operator does, and kills them as in production."""
