"""Starts and ends private MySQL and MariaDB servers, each with a data directory of its own."""
