"""Implements `sluice status`: shows the state of the processes and of the destinations."""
