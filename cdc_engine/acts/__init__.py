"""Carries out an operator's actions on a destination. Called by the console, which asks the operator and prints. Nothing here is
interactive.
"""
