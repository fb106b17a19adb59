"""Reads the state of Delta tables from their logs, creates and alters them, and follows schema changes of the source."""
