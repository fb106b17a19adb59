"""Registers Delta tables and views of them in a Spark catalog."""
