"""Tests of the registry of recipes."""
