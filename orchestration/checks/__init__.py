"""Defines the asset checks: whether tables and engines have stopped, and whether the lake equals the source. Contains what they observe."""
