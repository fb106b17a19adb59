"""Implements `sluice source`, which lists the sources of a destination and switches between them."""
