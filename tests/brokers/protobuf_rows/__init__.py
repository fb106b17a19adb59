"""Tests of rows as Protobuf messages."""
