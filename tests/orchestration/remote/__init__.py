"""Tests of `orchestration.remote`."""
