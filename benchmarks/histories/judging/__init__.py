"""Decides whether a history kept the guarantees, and shortens a history that did not."""
