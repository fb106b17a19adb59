"""Compares Canal's own server, read by Canal's client, with Sluice's server for Canal's protocol."""
