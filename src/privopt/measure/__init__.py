"""THE PRIVATE SIDE: all code that reads private examples to answer something. To review privopt's privacy, read this package."""
