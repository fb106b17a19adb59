"""Stores blocks in segment files, in stream order; each record has a length and a checksum. Used by the stores `file` and `mixed`, and by
`spill`.
"""
