"""Passes the parser's blocks to the store and removes what is not captured. The work is per block, never per row."""
