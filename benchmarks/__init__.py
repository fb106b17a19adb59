"""Measures Sluice against its limits and against similar tools. Run by `./sluice bench`, written as JSON, described in
benchmarks/README.md.
"""
