"""Stores the list of captured tables of a destination, for processes that have no connection to the source: one record per table, and a
head that says which records have changed.
"""
