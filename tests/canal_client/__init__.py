"""Tests of the client for consumers."""
