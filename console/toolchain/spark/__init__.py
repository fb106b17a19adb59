"""Starts Sluice's Spark Connect server, and warms it up."""
