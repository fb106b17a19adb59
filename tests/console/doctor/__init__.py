"""Tests of `sluice doctor`."""
