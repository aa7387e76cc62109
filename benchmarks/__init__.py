"""Benchmarks: how fast privopt is, and how good its models are, beside what is required of it."""
