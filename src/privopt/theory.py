"""The papers' closed forms: bounds with their conditions, prescribed parameters, and noise beside what is needed."""

from privopt.privacy.theory import (
    Bound,
    Noise,
    Plan,
    Problem,
    adadps,
    compare,
    dpagd,
    dpsrm,
    orders,
    sagd,
    smooth_erm,
)

__all__ = ["Bound", "Noise", "Plan", "Problem", "adadps", "compare", "dpagd", "dpsrm", "orders", "sagd", "smooth_erm"]
