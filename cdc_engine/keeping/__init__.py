"""Starts and stops the engines of a process as conf/ and operators require: decides which conf/ is in use, which orders of operators are
open, and what to do.
"""
