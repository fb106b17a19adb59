"""Tests the schema history: by position, over restarts, with real servers."""
