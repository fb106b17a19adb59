"""Implements Canal's service over the store and the ledger: subscribe, get, ack, rollback. The sockets are in `protocol`."""
