"""Sluice in a code location of the user: a component for `dg`, a function without it, and the processes of its engines."""
