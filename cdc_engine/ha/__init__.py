"""Implements the leases and locks with which a destination has at most one engine and one merging run, over all processes and hosts."""
