"""Finds positions in the binlog: the position of a time, the beginning of a transaction, and how long the server retains a position."""
