"""Compares the real Canal and its client with Sluice's protocol server."""
