"""Turns received bytes into blocks: framing, the compiled pass over events, and the events that are handled in Python."""
