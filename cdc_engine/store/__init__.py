"""Keeps the blocks of the parser until their batches are acked: in memory, in files, or both. Limits how many bytes and how many row events
are kept.
"""
