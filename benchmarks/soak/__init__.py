"""Implements `./sluice bench soak`: runs the pipeline for hours while its source fails over and ZooKeeper, engine and Spark are killed in
turn.
"""
