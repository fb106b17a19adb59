"""Tests of `orchestration.base`."""
