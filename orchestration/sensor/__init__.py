"""Contains the sensors of a destination. A tick of the engine sensor settles the batch in flight, publishes observations and check results,
and hands out the next batch.
"""
