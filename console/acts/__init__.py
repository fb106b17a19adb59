"""Implements the commands that act on one destination: position, schema changes, snapshots, engines. The rules are in `cdc_engine.acts`."""
