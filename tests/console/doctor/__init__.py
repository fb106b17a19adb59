"""`sluice doctor`."""
