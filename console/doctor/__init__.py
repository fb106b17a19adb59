"""Collects the facts that a report of a defect needs into one text without secrets, for `sluice doctor`."""
