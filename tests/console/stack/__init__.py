"""Processes of a stack."""
