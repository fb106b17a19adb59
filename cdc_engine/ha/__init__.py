"""Implements the leases and locks that allow a destination only one engine and one merging run, over all processes and hosts."""
