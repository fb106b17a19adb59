"""Measurements of Sluice against the limits and its peers; run by `./sluice bench`, written as JSON, told in benchmarks/README.md."""
