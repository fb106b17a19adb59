"""Measures Sluice, and compares it with its limits and with similar tools. `./sluice bench` runs the benchmarks and writes JSON.
benchmarks/README.md describes them.
"""
