"""What the schema history keeps by position, in memory and in its repository."""
