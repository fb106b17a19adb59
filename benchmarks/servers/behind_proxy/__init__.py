"""Runs servers of others behind proxies that add what the servers lack."""
