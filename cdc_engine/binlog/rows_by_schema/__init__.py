"""Turns row events into messages with a schema: the schema of a table version, and its rows with an envelope, as Avro or Protobuf. Pure;
used by `brokers`.
"""
