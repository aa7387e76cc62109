"""Theory: the closed forms of the five papers, evaluated at numbers, with their conditions checked and their errors corrected.

One file per paper. No guarantee relies on it: those rest on `privopt.epsilon` and `privopt.calibrate`. What must stay true: a
bound whose condition fails has no value but names the condition, and every constant can be derived; each file's docstring lists
where that differs from the printed paper.
"""

from privopt.theory import (
    li_side_information,
    wang_stochastic_nonconvex,
    zhang_smooth_erm,
    zhou_adaptive_generalization,
    zhou_private_nonconvex,
)
from privopt.theory.comparison import compare, orders
from privopt.theory.theorems import Bound, Noise, Plan, Problem

__all__ = [
    "Bound",
    "Noise",
    "Plan",
    "Problem",
    "compare",
    "li_side_information",
    "orders",
    "wang_stochastic_nonconvex",
    "zhang_smooth_erm",
    "zhou_adaptive_generalization",
    "zhou_private_nonconvex",
]
