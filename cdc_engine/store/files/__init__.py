"""Blocks in segment files, in stream order, each record with length and checksum: what the stores `file` and `mixed` keep."""
