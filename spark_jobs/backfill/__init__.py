"""Applies the changes of an interval of the past again. Contains the fold, its commit, and past states of tables."""
