"""Compares Canal's own server with Sluice's server for Canal's protocol, by reading both with Canal's client."""
