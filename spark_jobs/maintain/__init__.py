"""Keeps Delta tables fast and small: decides when their files are rewritten and which are removed. Runs under the run lock."""
