"""Executes an operator's requests about a destination. The console gets the operator's answers before it calls these functions. The
functions do not use the terminal.
"""
