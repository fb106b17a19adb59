"""Defines the asset checks and the engine's observations. The checks report stopped tables and engines, and differences between lake and
source.
"""
