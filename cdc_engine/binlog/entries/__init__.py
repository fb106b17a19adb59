"""Blocks as a consumer of Canal's protocol sees them: entries of transactions, rows and statements, as protobuf bytes made by kernels."""
