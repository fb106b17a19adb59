"""The schema history: stores schemas by position, compares them with table maps, reads them from the server, and applies operators'
decisions.
"""
