"""Computes the effect of a statement on a table, and which part of it the lake follows. Pure functions."""
