"""Turns blocks into Canal's entries for transactions, rows and statements, as protobuf bytes made by kernels."""
