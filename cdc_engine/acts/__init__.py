"""The acts of an operator on a destination, as rules: the console asks, prints, and calls these. Nothing here is interactive."""
