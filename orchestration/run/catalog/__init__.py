"""Gives Delta tables names in a catalog of Spark."""
