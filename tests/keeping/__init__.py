"""Tests of `cdc_engine.keeping`."""
