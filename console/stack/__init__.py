"""Starts the processes of an installation in order, keeps them running, and ends them."""
