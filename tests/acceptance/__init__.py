"""The real programs, started as an operator starts them, and killed as the world kills them."""
