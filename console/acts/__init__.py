"""Implements the commands for one destination: `sluice position`, `schema`, `snapshot`, `instance` and `catch-up`. `cdc_engine.acts`
decides which requests are allowed.
"""
