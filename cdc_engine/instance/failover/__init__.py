"""Switches between sources: checks whether the current source is alive, and which one can take over, and makes the change."""
