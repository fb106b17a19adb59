"""Tests how batches of one destination are staged, handed out, acked and rolled back."""
