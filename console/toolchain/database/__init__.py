"""Starts and stops private MySQL and MariaDB servers, each with its own data directory."""
