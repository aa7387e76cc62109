"""Training: a session owns the run; what linear models and networks on tables add to it."""
