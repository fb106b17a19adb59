"""The ledger of a destination: what was handed out and what is acked, durable over restarts."""
