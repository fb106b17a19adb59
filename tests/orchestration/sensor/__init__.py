"""The sensor's tick and its rules."""
