"""Connects the engine to Dagster: a sensor starts a run for each staged batch, the run merges the batch, and its end acks the batch or
rolls it back.

`definitions` is the code location. Importing it opens no connection and starts no engine and no Spark, because every run process imports
it.
"""
