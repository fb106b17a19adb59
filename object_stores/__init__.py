"""Accesses object stores: reads `storage_options` of conf/, opens a store as a pyarrow file system, and transfers directories of staged
files.

This package imports nothing else of Sluice, because engine, runs and Spark tasks all use it to open a store in the same way."""
