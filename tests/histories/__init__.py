"""Tests histories of failovers, crashes and mistakes, which benchmarks/histories simulates in one process."""
