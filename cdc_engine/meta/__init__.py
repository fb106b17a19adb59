"""What was handed out and what is acked, kept over restarts: the ledger of a destination."""
