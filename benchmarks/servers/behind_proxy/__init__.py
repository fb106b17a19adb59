"""Runs servers of other projects behind proxies that add what the servers lack."""
