"""Runs the demo: a private MySQL with the tables of a shop, random traffic, the whole stack, a live view, and a comparison of source and
lake.
"""
