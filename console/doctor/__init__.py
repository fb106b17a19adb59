"""Implements `sluice doctor`: collects, without secrets, the facts that a report of a defect needs, as one text."""
