"""Stores the ledger of a destination: the durable record of the batches that were handed out and acked."""
