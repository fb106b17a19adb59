"""Implements `sluice demo`: a private MySQL with the tables of a shop, random traffic, all processes of Sluice, a live view, and a
comparison of MySQL and the lake.
"""
