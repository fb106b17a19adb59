"""Sluice's engine: turns MySQL's binlog into staged batches, with get, ack and rollback.

Data passes through the packages in this order: `parser` (with `binlog` and `table_meta`) → `sink` → `store` → `server` (with `meta`) →
`staging`. They share the values of `contracts`; `instance` connects them; `client` is the only package that code outside the engine may
import.
"""
