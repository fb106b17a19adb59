"""Passes the parser's blocks to the store and removes what is not captured, per block and never per row."""
