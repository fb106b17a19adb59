"""Serves consumers: `consumer` implements get, ack and rollback of deliveries, and `protocol` serves consumers over sockets."""
