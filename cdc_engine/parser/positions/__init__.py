"""Finds positions in the binlog: of a time, of the beginning of a transaction, and how long the server keeps one."""
