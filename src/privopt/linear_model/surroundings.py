"""What surrounds a fit: earlier steps of its pipeline, and earlier fits of this process.

An estimator is given rows, and not told where they come from. What can be seen from inside a fit is the call stack: a `Pipeline`
of scikit-learn that fits its last step is on it, with its earlier steps. So steps of the pipelines that lead to this call are
seen, nested ones and those inside `ColumnTransformer` and `FeatureUnion` too, in a search or a cross-validation as well. What was
done to the rows before, by hand or by the parent of a worker process, is not seen.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

from privopt.errors import warn

# ---------------------------------------------------------------- steps that learn


_BY_SHAPE = {  # what these learn is the number of columns, which is public, and random numbers
    "AdditiveChi2Sampler",
    "FrozenEstimator",  # which is not fitted again
    "GaussianRandomProjection",
    "PolynomialCountSketch",
    "PolynomialFeatures",
    "RBFSampler",
    "SkewedChi2Sampler",
    "SparseRandomProjection",
}
_BY_PARAMETER: dict[str, Callable[[Any], bool]] = {  # these learn nothing if a parameter says it all
    "CountVectorizer": lambda step: step.vocabulary is not None,
    "OneHotEncoder": lambda step: not isinstance(step.categories, str),
    "OrdinalEncoder": lambda step: not isinstance(step.categories, str),
    "SimpleImputer": lambda step: step.strategy == "constant" and not step.add_indicator,
    "SplineTransformer": lambda step: not isinstance(step.knots, str),
    "StandardScaler": lambda step: not (step.with_mean or step.with_std),
}


def warn_of_steps(estimator: Any) -> list[str]:
    """Warn of steps of the pipeline around this call of `fit` that learnt from the rows; the names of their classes."""
    learnt = list(dict.fromkeys(name for pipeline in _pipelines(estimator) for name in _learning(pipeline.steps[:-1])))
    if learnt:
        names = ", ".join(learnt)
        warn(
            f"{names} of the pipeline learnt from the rows before this fit, without noise, and nobody paid for it: that may "
            "reveal them, and the guarantee does not cover it. Use what learns nothing (the estimators scale columns "
            "themselves, and encode data frames), or fit it on public rows and freeze it (FrozenEstimator)."
        )
    return learnt


def _pipelines(estimator: Any) -> Iterator[Pipeline]:
    """The pipelines on the call stack whose last step leads to this estimator, the innermost first."""
    frame, last = sys._getframe(1), estimator
    while frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if isinstance(caller, Pipeline) and caller.steps[-1][1] is last:
            yield caller
            last = caller
        elif isinstance(caller, BaseEstimator) and frame.f_code.co_name == "fit" and caller is not estimator:
            last = caller  # an estimator that fits another one, and may be the last step itself


def _learning(steps: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """The classes of those steps that learn when they are fitted, as far as it can be known."""
    for _, step, *_ in steps:
        if isinstance(step, Pipeline):
            yield from _learning(step.steps)
        elif isinstance(step, FeatureUnion):
            yield from _learning(step.transformer_list)
        elif isinstance(step, ColumnTransformer):
            yield from _learning(step.transformers)
        elif step is not None and not isinstance(step, str) and not _learns_nothing(step):
            yield type(step).__name__


def _learns_nothing(step: Any) -> bool:
    name = type(step).__name__
    if type(step).__module__.startswith("sklearn.") and (
        name in _BY_SHAPE or (name in _BY_PARAMETER and _BY_PARAMETER[name](step))
    ):
        return True
    return not get_tags(step).requires_fit


# ---------------------------------------------------------------- fits of this process


_fits: Counter[tuple[str, ...] | int] = Counter()  # without a ledger of the user's, by the columns of the rows


def count_fit(columns: Sequence[str] | int) -> str | None:
    """Count a fit on rows of these columns, and describe the others for a statement; `None` if there were none.

    Only the number and the names of columns are compared, which are public: whether the rows are the same ones is private.
    """
    key = columns if isinstance(columns, int) else tuple(columns)
    _fits[key] += 1
    number = _fits[key]
    if number == 1:
        return None
    others = "1 earlier fit" if number == 2 else f"{number - 1} earlier fits"
    return (
        f"{others} of this process on rows of the same columns (this is number {number}): if they are about the same people, "
        "their budgets add up, and one ledger for all of them would say so (ledger=)"
    )
