"""Object stores: what conf/ says of one in deltalake's words, pyarrow's file system for it, and folders of staged files in it.

Imports nothing else of ours: engine, run and Spark's tasks must find one store.
"""
