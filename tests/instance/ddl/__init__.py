"""A running engine and the changes of its tables."""
