"""Histories of failovers, crashes and mistakes, played in one process (benchmarks/histories)."""
