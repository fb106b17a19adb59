"""Tests the engine of one destination on a real server: its lease, its disk, its place in a process."""
