"""Tests row images and transactions of every kind."""
