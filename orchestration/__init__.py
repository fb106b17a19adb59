"""Connects the engine to Dagster. A sensor requests a run for each staged batch, and the run merges the batch. When the run has ended,
the sensor acks the batch or rolls it back.

The module `definitions` is the code location. Its import opens no connection and starts no engine and no Spark, because every run process
imports it.
"""
