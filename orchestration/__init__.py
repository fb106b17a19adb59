"""Dagster around the engine: a sensor hands each staged batch to a run, the run merges it, its end acks the batch or rolls it back.

`definitions` is the code location. Importing it opens no connection, starts no engine and no Spark: every run process does it.
"""
