"""Describes the server to read from, and opens sessions on it. The parser dumps the binlog over a session, and snapshots read existing
rows.
"""
