"""Executes an operator's requests about a destination. The console calls these functions after it has asked the operator. The functions do
not read from or write to a terminal.
"""
