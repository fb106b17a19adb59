"""Stores small records that several hosts share and write by compare-and-set, in files, a SQL database, ZooKeeper or memory."""
