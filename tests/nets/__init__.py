"""Private training of networks."""
