"""Implements Canal's subscribe, get, ack and rollback: `service` hands out batches to the lake, and `consumer` hands out deliveries to
consumers. `protocol` serves consumers over sockets.
"""
