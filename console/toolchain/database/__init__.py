"""Starts and stops private MySQL and MariaDB servers, each with a data directory of its own."""
