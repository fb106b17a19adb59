"""Stores small records in files, a SQL database, ZooKeeper or memory. Several hosts can share the records, because writes are
compare-and-set.
"""
