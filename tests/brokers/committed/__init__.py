"""Tests brokers that commit the position together with the messages, so that each message arrives once."""
