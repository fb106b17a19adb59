"""Compares tables of the source with the lake at one position while the source continues to change, and reports whether they are equal.
`sluice equal`, the asset checks, the demo and tests use this package. A comparison starts no process, and writes neither to the source nor
to the lake.
"""
