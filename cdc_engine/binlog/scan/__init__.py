"""Received bytes → blocks: framing, the compiled pass over events, and what it hands to Python."""
