"""The factors of one parameter that was used several times, as one."""

from collections.abc import Sequence
from functools import reduce

import torch

from privopt.perexample.torch.factors.factor import Factor
from privopt.perexample.torch.factors.outer import Outer, Signal, Term


def joined(factors: Sequence[Factor]) -> Factor:
    """Their sum. Calls are more time: cross terms between them count."""
    if len(factors) == 1:
        return factors[0]
    total = reduce(lambda one, other: one.plus(other), factors)
    if isinstance(total, Outer) and all(isinstance(term.source, Signal) for term in total.terms):
        inputs = torch.cat([term.source.block(0, term.source.shape[0]) for term in total.terms], 1)
        return Outer([Term(Signal(inputs), torch.cat([t.gradients for t in total.terms], 1))], total.shape, total.groups)
    return total
