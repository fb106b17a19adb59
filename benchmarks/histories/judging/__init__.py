"""Decides whether a finished history kept the guarantees, and finds the shortest one that did not."""
