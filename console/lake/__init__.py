"""Implements the commands that query the lake or change it."""
