"""Tests tables that raise errors, clash or have odd names, on real servers and Spark."""
