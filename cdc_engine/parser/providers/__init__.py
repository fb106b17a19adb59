"""Determines who operates a server (its provider), from its version, variables and host name. Knows the retention that a provider
promises, and the words in which it documents its settings.
"""
