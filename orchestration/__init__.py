"""Connects the engine to Dagster. A sensor requests a run for each staged batch, and the run merges the batch. When the run has ended, the
sensor acks the batch or rolls it back.

The module `definitions` is Sluice's code location. Every run process imports this module. Therefore the import opens no connection to a
source, and starts neither an engine nor Spark.
"""
