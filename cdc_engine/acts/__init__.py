"""Executes an operator's requests about a destination. The functions do not use the terminal: the console reads the operator's answers, and
passes them as arguments or through callbacks.
"""
