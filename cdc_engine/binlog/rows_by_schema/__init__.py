"""Encodes row events as Avro or Protobuf messages with Debezium's envelope, and makes the schemas of a table version."""
