"""Real servers of services that several hosts share, such as ZooKeeper and Postgres, private to the process that starts them."""
