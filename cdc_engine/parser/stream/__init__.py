"""Reads the binlog stream of a source: requests a dump, separates and scans its events, connects again after an error, and watches whether
the stream makes progress.
"""
