"""Runs the engines of a process as conf/ and the operators require: which conf/ is in use, which orders exist, what to do about them."""
