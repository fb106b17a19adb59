"""Builds a past state of a table as a separate Delta table (`into`), and replaces a live table's rows by a past state (`swap`)."""
