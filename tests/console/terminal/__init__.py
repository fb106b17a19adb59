"""Tests what the command shows on a terminal, and what it completes in a shell."""
