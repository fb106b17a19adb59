"""Tests several sources of a destination: which source takes over, and that no change is lost or arrives twice."""
