"""Tests the sensor's tick and its rules."""
