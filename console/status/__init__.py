"""Implements `sluice status`: shows the processes, and each destination by its files."""
