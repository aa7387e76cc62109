"""Theory: the closed forms of the five papers, evaluated at numbers, with their conditions checked and their slips repaired.

One file per paper. No guarantee relies on it: those rest on `privopt.epsilon` and `privopt.calibrate`. What must stay true: a
bound whose condition fails has no value but the names of the conditions, and every constant can be derived; each file's
docstring lists where that differs from what is printed.
"""

from privopt.privacy.theory import adadps, dpagd, dpsrm, sagd, smooth_erm
from privopt.privacy.theory.comparison import compare, orders
from privopt.privacy.theory.problem import Problem
from privopt.privacy.theory.results import Bound, Noise, Plan

__all__ = ["Bound", "Noise", "Plan", "Problem", "adadps", "compare", "dpagd", "dpsrm", "orders", "sagd", "smooth_erm"]
