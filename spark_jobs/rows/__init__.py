"""Folds changes of chosen keys into one image per key, for backfills and repairs. A backfill chooses the keys that changed in an interval;
a repair chooses the keys that it has read."""
