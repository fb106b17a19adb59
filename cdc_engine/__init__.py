"""Sluice's engine: reads the binlog of MySQL or MariaDB, and hands out its changes as staged batches, with get, ack and rollback.

The binlog's data passes through these packages in this order: `parser` (with `binlog` and `table_meta`) → `sink` → `store` → `server` (with
`meta`) → `staging`. The packages exchange the values that `contracts` defines, and `instance` connects the packages. docs/architecture.md
lists what each package may import.
"""
