"""Implements `sluice doctor`: collects the facts for a report of a defect in one text without secrets."""
