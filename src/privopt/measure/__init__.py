"""THE PRIVATE SIDE: whatever is learnt from private examples is answered here. To review privopt's privacy, read this package."""
