"""Tests of the schema history: against real servers, against models, against torn files."""
