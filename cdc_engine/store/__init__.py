"""Stores blocks between the parser and the readers of batches (put ≥ get ≥ ack), bounded in bytes and in row events."""
