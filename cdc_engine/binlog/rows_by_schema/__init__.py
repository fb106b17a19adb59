"""Turns row events into messages with a schema: the schema of a table version, and its rows with an envelope, as Avro. Pure; used by
`brokers`.
"""
