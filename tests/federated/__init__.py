"""Tests of federations."""
