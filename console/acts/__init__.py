"""Implements the commands that act on one destination: position, schema changes, snapshots, engines. `cdc_engine.acts` decides what the
commands may do.
"""
