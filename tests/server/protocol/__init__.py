"""Tests of the protocol server."""
