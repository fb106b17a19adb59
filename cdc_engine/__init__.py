"""Implements Sluice's engine: reads the binlog of MySQL or MariaDB, and hands out the changes in the binlog as staged batches. A caller
gets a batch, and then acks it or rolls it back.

The binlog's data passes through these packages in this order: `parser` (with `binlog` and `table_meta`) → `sink` → `store` → `staging`. The
packages exchange the values that `contracts` defines, and `instance` connects the packages. `instance` also hands out the batches, and
records them in the ledger (`meta`). docs/architecture.md lists what each package may import.
"""
