"""What the command line asks of the lake, and does to it."""
