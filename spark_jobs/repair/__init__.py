"""Repairs rows: makes chosen keys of a table equal to the source's rows at the lake's position. Contains the fold and its commit."""
