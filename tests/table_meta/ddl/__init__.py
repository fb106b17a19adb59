"""Reading statements."""
