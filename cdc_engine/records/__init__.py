"""The record store: small records that several hosts share, written by compare-and-set, in a SQL database, ZooKeeper or memory."""
