"""Tests the engine of one destination on a real server: its lease, its disk, and the process in which it runs."""
