"""Turns received bytes into blocks: splits packets, scans events in a compiled pass, and handles the remaining events in Python."""
