"""Decodes the row events of one table version into Arrow record batches."""
