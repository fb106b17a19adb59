"""Stores blocks between the parser, which puts them, and the readers of batches, which get and ack them. Limits the bytes and the row
events that are stored.
"""
