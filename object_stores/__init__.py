"""Object stores: the `storage_options` of conf/, pyarrow's file system for a store, and directories of staged files in it.

Imports nothing else of Sluice: engine, run and Spark tasks must open the same store in the same way.
"""
