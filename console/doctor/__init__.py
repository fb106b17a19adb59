"""`sluice doctor`: what a report of a defect needs, in one text without secrets."""
