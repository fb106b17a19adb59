"""Starts and stops private MySQL and MariaDB servers. Each has its own data directory."""
