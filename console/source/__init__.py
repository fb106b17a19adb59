"""Implements `sluice source`: lists the sources of a destination and switches between them."""
