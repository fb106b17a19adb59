"""Puts Sluice into a code location of the user: a component for `dg`, a function for use without it, and the processes of its engines."""
