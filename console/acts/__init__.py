"""Commands that act on one destination: its position, stopped tables, snapshots, backfills. The rules are in `cdc_engine.acts`."""
