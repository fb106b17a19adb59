"""Converts blocks to Canal's protobuf entries for transactions, rows and statements, in numba kernels."""
