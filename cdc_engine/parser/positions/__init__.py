"""Finds positions in the binlog: that of a time, the beginning of a transaction, and how long the server keeps a position."""
