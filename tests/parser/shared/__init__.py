"""Tests one dump of a server for several parsers."""
