"""Tests of the public side."""
