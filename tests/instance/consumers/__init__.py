"""Tests of the consumers beside the lake."""
