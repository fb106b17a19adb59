"""Tests of rows in the server's binary protocol."""
