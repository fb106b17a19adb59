"""Stores small records that several hosts share: in files, a SQL database, ZooKeeper or memory. Writers use compare-and-set."""
