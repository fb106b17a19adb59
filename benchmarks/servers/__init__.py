"""Servers of others, private to the tests and benchmarks that start them: brokers, stores, ZooKeeper, Postgres, Spark, a browser."""
