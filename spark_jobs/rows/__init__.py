"""Operates on chosen rows of tables: a backfill chooses the keys that changed in an interval, a repair a list of keys that it has read."""
