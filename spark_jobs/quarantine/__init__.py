"""Stores values that could not be decoded in a Delta table of the destination, and puts them back into their rows once
they can be decoded.
"""
