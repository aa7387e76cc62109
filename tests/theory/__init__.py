"""Tests of the papers' closed forms."""
