"""Keeps the newest part of a stream in memory for any number of consumers, each at its own position. The live stream does not wait for
consumers.
"""
