"""Adds Sluice to a user's code location: a component for `dg`, a function for use without `dg`, and the start of the engine process."""
