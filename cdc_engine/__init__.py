"""Sluice's engine: from MySQL's binlog to staged batches, behind get, ack and rollback.

Read the rooms left to right: `parser` (with `binlog` and `table_meta`) → `sink` → `store` → `server` (with `meta`) → `staging`. They
meet in `contracts`; `instance` joins them; `client` is all that the outside may import.
"""
