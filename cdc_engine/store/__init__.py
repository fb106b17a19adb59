"""Keeps the blocks that the parser puts until their batches are acked: in memory, in files, or both. Limits the bytes and the row events
that are kept.
"""
