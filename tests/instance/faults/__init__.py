"""Tests faults around a running engine, and what the engine reports."""
