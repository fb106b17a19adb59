"""Runs the pipeline for hours while its source fails over, and ZooKeeper, engine and Spark are killed in turn, for
`./sluice bench soak`.
"""
