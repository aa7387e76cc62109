"""The gradients of one parameter in factored form (`factor` lists the kinds)."""

from privopt.perexample.networks.factors.factor import Dense, Factor
from privopt.perexample.networks.factors.outer import Outer, Signal, Source, Term
from privopt.perexample.networks.factors.rank_one import RankOne
from privopt.perexample.networks.factors.sums import Shifted, Sum

__all__ = ["Dense", "Factor", "Outer", "RankOne", "Shifted", "Signal", "Source", "Sum", "Term"]
