"""Applies the changes of an interval of the past again: the request, its rules, and its plan."""
