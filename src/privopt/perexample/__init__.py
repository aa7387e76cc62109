"""Per-example gradients: a representation with norms and weighted sums, perhaps never formed."""
