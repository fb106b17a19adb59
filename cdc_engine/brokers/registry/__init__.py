"""Registers the schemas of rows in a schema registry with Confluent's API."""
