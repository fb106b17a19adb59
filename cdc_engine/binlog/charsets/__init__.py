"""Decodes text in MySQL's character sets exactly as the server does."""
