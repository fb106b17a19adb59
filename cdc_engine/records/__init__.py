"""Stores small records in files, a SQL database, ZooKeeper or memory. Several hosts can share the records in a database or in ZooKeeper,
because each write is a compare-and-set.
"""
