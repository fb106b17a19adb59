"""Implements `sluice status`: shows the processes, and each destination as its files describe it."""
