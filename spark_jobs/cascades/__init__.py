"""Finds the changes that foreign keys made without row events, by replaying the batch, and stages them as row images."""
