"""Reads the schemas that a dump of a database has."""
