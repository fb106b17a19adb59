"""Reads the binlog stream of a source: requests a dump, passes its bytes to the scan, connects again after an error, and watches whether
the stream makes progress.
"""
