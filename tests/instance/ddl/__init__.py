"""Tests a running engine while its tables are altered."""
