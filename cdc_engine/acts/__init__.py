"""An operator's actions on a destination, as rules. The console asks and prints, and calls these. Nothing here is interactive."""
