"""Removes the row events that filters exclude from the parser's blocks, and puts the blocks into the store. No Python loop runs per row."""
