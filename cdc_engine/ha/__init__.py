"""Implements the leases and locks that ensure that a destination has only one engine and one merging run, over all processes and hosts."""
