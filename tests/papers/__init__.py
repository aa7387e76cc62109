"""Recipes against small references, written from the papers alone."""
