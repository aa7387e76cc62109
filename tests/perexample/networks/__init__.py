"""Per-example gradients of networks."""
