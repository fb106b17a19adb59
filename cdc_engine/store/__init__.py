"""The ring of blocks between the parser and whoever takes batches: put ≥ get ≥ ack, bounded in bytes and in row events."""
