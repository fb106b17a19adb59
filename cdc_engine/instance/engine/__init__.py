"""Assembles the engine of one destination, runs it, and stops it."""
