"""The laws of DESIGN.md, each for every implementation of the slot that it speaks of."""
