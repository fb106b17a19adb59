"""Implements the commands that query or change the lake."""
