"""`sluice source`: the servers of a destination, and which of them is read."""
