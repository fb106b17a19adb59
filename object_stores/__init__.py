"""Accesses object stores: reads `storage_options` of conf/, opens pyarrow's file system for a store, and transfers directories of staged
files.

Imports nothing else of Sluice: engine, run and Spark tasks must open the same store in the same way."""
