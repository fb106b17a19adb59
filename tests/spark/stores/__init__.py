"""Tests a lake and staged files in object stores, on real servers."""
