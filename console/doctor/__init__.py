"""Collects the facts that a report of a defect needs in one text without secrets, for `sluice doctor`."""
