"""Determines the provider that operates a server, such as RDS, from the server's version and variables. Returns how long the provider
promises to retain the binlog, and advice in the words of the provider's documentation.
"""
