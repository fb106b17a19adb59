"""Stores blocks between the parser, which puts blocks, and the server, which gets and acks batches of them. Limits the bytes and the row
events that are stored.
"""
