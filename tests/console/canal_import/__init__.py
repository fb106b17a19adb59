"""Tests of `sluice import-canal`."""
