"""Keywords of scikit-learn's estimators that ours have not, with the reason and an alternative."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from privopt.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

REFUSED = {
    "C": "it is the inverse strength of a penalty on the sum of all losses. Use alpha, the strength of the penalty on the mean "
    "loss of scaled columns: alpha = 1/(C n) is where to begin.",
    "class_weight": "a weight would let each row of a rare class move the model further than the bound that hides a row. Train "
    "without, and choose the threshold on predict_proba.",
    "sample_weight": "a weight multiplies one row's influence, and what hides a row is that its influence is bounded. Leave out "
    "rows by a public rule instead; if people have several rows, groups=ids counts each person once.",
    "warm_start": "a start that depends on earlier fits would have to be paid for again. Train for more rounds instead.",
    "max_iter": "a run takes all its planned rounds. Use rounds.",
    "tol": "stopping when the loss settles would be a release about the rows. Use rounds.",
    "solver": "the way to train decides what is released. Use method; `privopt methods` lists them.",
    "l1_ratio": "there is no l1 penalty. Use alpha, the strength of a ridge penalty.",
    "multi_class": "several classes are learnt by one model. Leave it out.",
    "persons": "say whose row each is with groups=ids.",
    "verbose": "a callback sees the rounds: observer=.",
    "n_jobs": "one fit takes one thread.",
}


def check_keywords(names: Iterable[str]) -> None:
    """Refuse names that are known from scikit-learn and mean nothing here, with the reason."""
    for name in names:
        if name in REFUSED:
            raise InputError(f"there is no {name}: {REFUSED[name]}")


def without_refused(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, with our reason in the place of Python's TypeError for refused keywords; its signature stays."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        check_keywords(kwargs)
        return function(*args, **kwargs)

    return checked
