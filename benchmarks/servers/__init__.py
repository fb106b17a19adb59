"""Runs other projects' servers for tests and benchmarks: brokers, stores, ZooKeeper, Postgres, Spark, SSH, and a browser."""
