"""Switches between the sources of a destination: checks the current one, decides which one can take over, and makes the change."""
