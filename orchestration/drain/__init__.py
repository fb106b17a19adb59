"""Connects a run to its engine: the RPC endpoint in the engine's process, its client, and the rules of runs that drain."""
