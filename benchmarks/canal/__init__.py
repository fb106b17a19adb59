"""Compares Canal's own server with Sluice's server for Canal's protocol. Canal's client reads both."""
