"""Failover between sources: whether the current source is alive, which one can take over, and the change itself."""
