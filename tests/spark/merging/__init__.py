"""Tests how a merge applies row images."""
