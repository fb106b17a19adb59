"""Switches between the sources of a destination: checks whether the current source answers, decides which other source can take over, and
makes the switch.
"""
