"""The commands that act on one destination: position, schema changes, snapshots, engines. `cdc_engine.acts` decides what they may do."""
