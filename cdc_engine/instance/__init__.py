"""Implements the engine of one destination: creates its parts, connects them, starts and stops them."""
