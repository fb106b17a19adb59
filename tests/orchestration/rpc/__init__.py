"""Tests of `orchestration.rpc`."""
