"""Registers Avro schemas in a schema registry with Confluent's API. Used by `brokers.messages`."""
