"""The real Canal and its own client beside Sluice's protocol server."""
