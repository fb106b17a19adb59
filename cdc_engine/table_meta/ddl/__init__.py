"""Parses DDL statements of MySQL and MariaDB."""
