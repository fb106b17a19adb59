"""Tests of the window that consumers read."""
