"""What the command shows on a terminal, and completes in a shell."""
