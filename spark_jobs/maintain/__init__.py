"""Maintains Delta tables: decides when to rewrite their files, and removes files that are no longer needed. The caller
holds the run lock.
"""
