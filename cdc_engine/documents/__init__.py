"""Small texts that several hosts share: written by compare-and-set, in a SQL database, in ZooKeeper or in memory."""
