"""Finds positions in the binlog: by time, by GTIDs, or at the beginning of a transaction. Computes how long the server still retains a
position.
"""
