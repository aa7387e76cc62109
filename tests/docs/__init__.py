"""Tests of the documents."""
