"""Rows of a SELECT in the server's binary protocol → the same columns that row events become. Called by `cdc_engine.snapshot`."""
