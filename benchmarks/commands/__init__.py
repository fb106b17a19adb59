"""The command `sluice bench`, which exists only in a checkout."""
