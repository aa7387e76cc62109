"""Seeded bugs: one-line mistakes that break a guarantee, and the tests that have to catch them (`make mutants`)."""
