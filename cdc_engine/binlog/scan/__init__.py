"""Makes blocks from received bytes: splits packets, scans most events in a numba kernel, and handles the remaining events in Python."""
