"""Folds changes into one image per key, for backfills and repairs. A backfill folds the keys that changed in an interval. A repair folds
the keys that it has read from the source.
"""
