"""Tests of Avro messages and of schema registries."""
