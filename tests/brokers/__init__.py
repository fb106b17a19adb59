"""Tests of the brokers that changes are sent to."""
