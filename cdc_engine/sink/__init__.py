"""Removes the row events that filters exclude from the parser's blocks, and puts the blocks into the store. Processes blocks with numpy,
without a Python loop over rows.
"""
