"""Tests of the consumers other than the lake."""
