"""Finds out who operates a server: reads the marks of a provider, decides, and knows the retention that the provider promises, and advice
in its terms.
"""
