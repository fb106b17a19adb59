"""Sluice's engine: reads the binlog of MySQL or MariaDB, and hands out its changes as staged batches, with get, ack and rollback.

Data passes through these packages in order: `parser` (with `binlog` and `table_meta`) → `sink` → `store` → `server` (with `meta`) →
`staging`. They exchange the values of `contracts`, and `instance` connects them. docs/architecture.md lists what each package may import.
"""
