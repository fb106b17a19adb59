"""Starts and stops the engines of a process: decides which configuration is in use, reads the orders of operators, and starts, restarts or
stops engines accordingly.
"""
