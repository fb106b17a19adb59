"""Is the lake what the source holds? Compares MySQL's tables with Delta's at the same position, without stopping the source.

Asked by `sluice equal`, by the asset checks, by the demo and by tests; starts nothing and writes to neither side.
"""
