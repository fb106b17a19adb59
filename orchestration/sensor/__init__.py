"""Contains the engine sensor. Each tick settles the batch in flight, publishes observations and check results, and hands out the next
batch.
"""
