"""Keeps the ledger of a destination, which records durably what was handed out and what is acked."""
