"""Computes the effect of a DDL statement on tables, and decides which changes of a table the lake follows. Pure functions."""
