"""Stores values that could not be decoded in a Delta table of the destination, and puts them back once they can be decoded."""
