"""Connects the engine to Dagster. A sensor starts a run for each staged batch, the run merges the batch, and the sensor acks it or rolls it
back when the run has ended.

`definitions` is the code location. Importing it opens no connection and starts no engine and no Spark, because every run process imports
it."""
