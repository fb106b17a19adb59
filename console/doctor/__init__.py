"""Implements `sluice doctor`: collects the facts that a report of a defect needs into one text without secrets."""
