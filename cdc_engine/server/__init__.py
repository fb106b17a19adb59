"""Hands out and acks batches for the lake and deliveries for consumers: implements Canal's subscribe, get, ack and rollback. `protocol` has
the sockets.
"""
