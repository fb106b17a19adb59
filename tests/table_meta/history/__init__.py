"""Tests the schema history: the schemas at each position, also after restarts and with real servers."""
