"""Tests Delta tables: their owners, how they follow their source, and their readers."""
