"""Tests of the distribution: the wheel, the files in it, and an environment in which only it is installed."""
