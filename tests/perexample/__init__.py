"""Tests of per-example gradients in closed form."""
