"""Stores blocks between the parser and the readers of batches (put ≥ get ≥ ack), with a limit in bytes and in row events."""
