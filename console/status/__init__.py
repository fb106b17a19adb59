"""Shows the processes and the destinations, for `sluice status`."""
