"""Real servers of what several hosts share: ZooKeeper and Postgres, private to whoever starts them."""
