"""Tests of the bytes: table maps and character sets."""
