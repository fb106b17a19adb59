"""Tests of positions that a broker commits together with the messages: each message arrives once."""
