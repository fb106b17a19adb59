"""Keeps Delta tables fast and small: decides when their files are rewritten, and which files are removed. It runs under the run lock."""
