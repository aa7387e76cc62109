"""What the gradients of one parameter are made of (`factor` says which kinds there are)."""

from privopt.perexample.torch.factors.dense import Dense
from privopt.perexample.torch.factors.factor import Factor
from privopt.perexample.torch.factors.lookup import Lookup
from privopt.perexample.torch.factors.once import Once
from privopt.perexample.torch.factors.outer import Outer, Signal, Source, Term
from privopt.perexample.torch.factors.shifted import Shifted
from privopt.perexample.torch.factors.total import Total

__all__ = ["Dense", "Factor", "Lookup", "Once", "Outer", "Shifted", "Signal", "Source", "Term", "Total"]
