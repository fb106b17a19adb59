"""Describes the MySQL or MariaDB server to read, and opens sessions on it. The parser reads the binlog over a session, and snapshots read
existing rows.
"""
