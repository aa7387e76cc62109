"""Tests of the benchmark programs: that they measure what they say."""
