"""Decodes SELECT results of the server's binary protocol into the same columns as row events. Called by `cdc_engine.snapshot`."""
