"""Defines the command `sluice bench`, which exists only in a checkout."""
