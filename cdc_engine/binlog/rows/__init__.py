"""Row events of one table version → Arrow record batches."""
