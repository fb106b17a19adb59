"""Tests of the distribution: the wheel, an environment that has only it, and the files that it contains."""
