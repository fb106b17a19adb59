"""The commands that query or change the lake."""
