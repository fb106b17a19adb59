"""Reads table schemas from a database dump, for `sluice backfill --schemas`."""
