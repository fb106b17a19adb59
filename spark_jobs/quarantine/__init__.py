"""Stores in a Delta table of the destination the values that could not be decoded, and puts them back into their rows once they can be
decoded.
"""
