"""Starts the processes of a stack in order, keeps them running, and ends them."""
