"""Executes an operator's requests about a destination. The console calls it, after it has asked the operator. Nothing
here is interactive.
"""
