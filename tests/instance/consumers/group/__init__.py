"""Tests of groups: one consumer of several sources."""
