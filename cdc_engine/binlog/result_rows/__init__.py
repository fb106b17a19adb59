"""Decodes SELECT results in MySQL's binary protocol to the same Arrow columns as row events. Called by `cdc_engine.snapshot`."""
