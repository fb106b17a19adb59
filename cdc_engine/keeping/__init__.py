"""Runs the engines of a process as conf/ and the operators require: decides which conf/ is in use, which orders are open, and what
follows.
"""
