"""Accesses object stores: reads `storage_options` of conf/, opens a store as a pyarrow file system, and transfers directories of staged
files. Imports nothing else of Sluice, because engine, runs and Spark tasks all open stores with this package.
"""
