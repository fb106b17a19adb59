"""Reads the files of a staged batch: `local_copy` downloads them from the batch's object store, and `read` checks them against the
manifest.
"""
