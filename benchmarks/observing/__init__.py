"""Observes a benchmark while it runs: the memory of processes, and the times of each delivery."""
