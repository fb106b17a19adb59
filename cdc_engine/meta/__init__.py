"""Stores the ledger of a destination: the durable record of what was handed out and what is acked."""
