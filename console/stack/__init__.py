"""Starts the processes of Sluice in order, keeps them running, and ends them."""
