"""What an operator does to a destination, as rules: the console asks, says and calls these. Nothing here speaks to a person."""
