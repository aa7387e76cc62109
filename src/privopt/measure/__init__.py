"""THE PRIVATE SIDE: the only code that meets private examples. Reviewing privopt's privacy means reading this package."""
