"""A Delta table as it stands: what its log says, whose it is, and how it follows what was altered of its source."""
