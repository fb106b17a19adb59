"""Tests of Spark Connect servers behind TLS and a token."""
