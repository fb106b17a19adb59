"""Reads the binlog stream of a source: requests dumps, frames and scans them, resumes after a lost connection, and watches for progress."""
