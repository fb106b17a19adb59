"""Turns row events into Avro: the schema of a table version, and its rows as binary Avro with an envelope. Pure; used by `brokers`."""
