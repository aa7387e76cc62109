"""The gradients of one parameter in factored form (`factor` lists the kinds)."""

from privopt.perexample.networks.factors.dense import Dense
from privopt.perexample.networks.factors.factor import Factor
from privopt.perexample.networks.factors.lookup import Lookup
from privopt.perexample.networks.factors.outer import Outer, Signal, Source, Term
from privopt.perexample.networks.factors.rank_one import RankOne
from privopt.perexample.networks.factors.sum import Shifted, Sum

__all__ = ["Dense", "Factor", "Lookup", "Outer", "RankOne", "Shifted", "Signal", "Source", "Sum", "Term"]
