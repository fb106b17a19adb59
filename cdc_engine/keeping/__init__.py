"""Starts, restarts and stops the engines of a process, as conf/ and the requests of operators require. Also chooses which version of each
file of conf/ is in use.
"""
