"""THE PUBLIC SIDE: code that sees only answers that are already private, and so cannot leak."""
