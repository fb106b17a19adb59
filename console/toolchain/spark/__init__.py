"""Starts and warms up the local Spark Connect server."""
