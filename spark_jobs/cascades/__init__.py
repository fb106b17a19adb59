"""Finds the changes that foreign keys made without row events, by replaying the batch on the rows, and stages them as images."""
