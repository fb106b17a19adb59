"""Reads the state of Delta tables from their logs, creates and alters tables, and applies schema changes of the source to them."""
