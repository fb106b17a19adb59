"""Registers the schemas of rows in a schema registry with Confluent's API. Used by `brokers.messages`."""
