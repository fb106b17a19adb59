"""Runs the demo: a private MySQL with a shop, seeded traffic, the whole stack, a live view, and the proof that source and lake are
equal.
"""
