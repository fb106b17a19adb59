"""Makes blocks from the bytes of a binlog stream: splits packets, scans most events in a numba kernel, and handles the other events in
Python.
"""
