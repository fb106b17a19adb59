"""Computes the effect of a statement on tables, and decides which part of it the lake follows. Pure functions."""
