"""Reads the rows of chosen keys from the source again while the stream continues, for a repair of the lake."""
