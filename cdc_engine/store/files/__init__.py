"""Stores blocks in segment files, in the order of the stream. Each block is a record with a length and a checksum. Used by the stores
`file` and `mixed`, and by `spill`.
"""
