"""Stores blocks between the parser and the readers of batches (put ≥ get ≥ ack), with limits in bytes and in row events."""
