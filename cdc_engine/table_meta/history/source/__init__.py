"""Reads the present schemas of the source's tables from the server."""
