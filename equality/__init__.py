"""Compares MySQL's tables with Delta's at the same position without stopping the source, to check whether the lake equals the source.

Used by `sluice equal`, the asset checks, the demo and tests. Starts nothing and writes to neither side."""
