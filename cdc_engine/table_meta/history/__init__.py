"""Stores the schemas of tables by position (the schema history), compares the schemas with table maps, reads schemas from the server, and
applies an operator's decisions.
"""
