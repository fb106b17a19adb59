"""What the source's server says of its tables now."""
