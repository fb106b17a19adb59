"""What goes wrong around a running engine, and what it says."""
