"""Registers the Avro and Protobuf schemas of tables in a schema registry with Confluent's API."""
