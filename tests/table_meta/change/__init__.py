"""What a statement makes of a table, and what of it the lake follows."""
