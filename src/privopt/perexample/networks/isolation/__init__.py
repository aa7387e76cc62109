"""Isolation: checks that each example's loss, and its gradient, depend on that example only.

| file | what it looks at |
|---|---|
| `model_check` | made-up batches: gradients of the recorder against those of plain autograd, one example at a time |
| `one_by_one` | made-up batches in double precision: the losses of a batch against those of each example on its own |
| `combinations` | shapes: operations that make one number of several examples, whatever their values are |
| `overwriting` | any batch: losses and gradients after the rows of other examples were overwritten |

`examples` builds the batches that show a dependence.
"""
