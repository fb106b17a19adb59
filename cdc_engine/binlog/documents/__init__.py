"""Prints MySQL's binary JSON documents as text, and applies logged JSON differences to documents."""
