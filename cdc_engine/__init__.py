"""Sluice's engine: turns the binlog of MySQL or MariaDB into staged batches, with get, ack and rollback.

Data passes through the packages in this order: `parser` (with `binlog` and `table_meta`) → `sink` → `store` → `server` (with `meta`) →
`staging`. They share the values of `contracts`; `instance` connects them. docs/architecture.md lists what each package may import.
"""
