"""Accesses object stores: reads `storage_options` of conf/, opens a store as a pyarrow file system, and transfers directories of staged
files. The engine, runs and Spark tasks use this package, so it depends on none of them.
"""
