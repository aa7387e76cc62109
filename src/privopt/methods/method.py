"""A method: one record beside its recipe, with the defaults, options and limits of the algorithm.

Front ends know methods by this record only. A user's own `Method` goes wherever a name goes.
"""

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any

from privopt.errors import CompositionError, InputError
from privopt.measure.samplers import disjoint_batches, fixed_size, full_batch, poisson
from privopt.measure.units import each_person, rows_drawn
from privopt.methods.problem import LossFacts, ModelKind, Problem
from privopt.methods.rules import Arguments
from privopt.recipe import Recipe


@dataclass(frozen=True)
class Option:
    """What a value of an option may be, in words and as a test."""

    words: str
    accepts: Callable[[Any], bool]


def _within(value: Any, low: float, high: float, open_ends: str) -> bool:
    """Whether a value is a number between low and high; `open_ends` names the ends that do not belong to it."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    number = float(value)
    return (low < number if "low" in open_ends else low <= number) and (number < high if "high" in open_ends else number <= high)


def _number(words: str, low: float, high: float, open_ends: str = "") -> Option:
    return Option(words, partial(_within, low=low, high=high, open_ends=open_ends))


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_rate(value: Any) -> bool:
    return POSITIVE.accepts(value) or callable(value)


def _is_scale(value: Any) -> bool:
    return not isinstance(value, bool)


def _is_slot(value: Any) -> bool:
    return not isinstance(value, str | Real | list | dict | None)


def _is_member(value: Any, names: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value in names


def _is_none_or(value: Any, option: Option) -> bool:
    return value is None or option.accepts(value)


DECAY = _number("a number in [0, 1)", 0.0, 1.0, "high")
SHARE = _number("a number in (0, 1]", 0.0, 1.0, "low")
PART = _number("a number in (0, 1)", 0.0, 1.0, "low and high")
WEIGHT = _number("a number in [0, 1]", 0.0, 1.0)
NOT_NEGATIVE = _number("a finite number ≥ 0", 0.0, math.inf, "high")
POSITIVE = _number("a finite number > 0", 0.0, math.inf, "low and high")
CEILING = _number("a number > 0", 0.0, math.inf, "low")
FINITE = _number("a finite number", -math.inf, math.inf, "low and high")
COUNT = Option("a whole number, at least 1", _is_count)
FLAG = Option("true or false", _is_flag)
RATE = Option("a finite number > 0, or a function of the round", _is_rate)
SCALE = Option("a number > 0 for each coordinate", _is_scale)
SLOT = Option("an object of Python, which can be given in Python only", _is_slot)


def one_of(*names: str) -> Option:
    """One of these words."""
    return Option(" or ".join(map(repr, names)), partial(_is_member, names=names))


def optional(option: Option) -> Option:
    """What the option accepts, or None."""
    return Option(f"{option.words}, or None", partial(_is_none_or, option=option))


ALL_EXAMPLES = "{name} uses every row in every round: leave batch_size out, or use {instead}."
HIDDEN = {  # arguments that a statement says elsewhere, or not at all
    *("release", "regularizer", "sampling", "anchor_sampling", "clean_sampling", "public", "scale", "noise_multiplier"),
    *(
        "rounds",
        "max_rounds",
        "steps",
        "cohort",
        "expected_batch_size",
        "batch_size",
        "size",
        "dimension",
        "without_privacy",
        "pure",
    ),
}


@dataclass(frozen=True)
class Method:
    """An algorithm by name: `defaults(problem, noise_multiplier)` are the arguments that `recipe` is called with.

    >>> from privopt.methods.dp_sgd import METHOD
    >>> METHOD.name, METHOD.pure
    ('dp-sgd', False)
    """

    name: str
    recipe: Callable[..., Recipe]
    defaults: Callable[[Problem, float], Arguments]
    paper: str
    summary: str
    options: Mapping[str, Option] = field(default_factory=dict)
    needs: str = "nothing"
    guarantee: str = "(ε, δ)-DP"
    models: Sequence[ModelKind] = ("linear", "network")
    private: bool = True
    pure: bool = False  # whether it can do without δ
    convex: bool = False  # whether it is defined for convex objectives only
    bounded: bool = False  # whether it needs gradients of bounded length
    noisy: bool = True  # whether it adds noise
    tables: bool = (
        False  # whether its defaults are made for tables: hats of numeric columns, an intercept that starts at the mean
    )
    uses_public: bool = False  # whether it uses public data
    uses_scale: bool = False  # or else a scale of the coordinates
    public_batch: int | None = 64  # public examples at a time: the mean gradient of more tells less of their size; None: all
    refuses: Mapping[str, str] = field(default_factory=dict)  # choices that it has no use for: name → the reason, and what to do
    row_limit: Callable[[Problem], float] | None = None  # rows longer than this are made shorter
    remarks: Callable[[Problem, Arguments], Mapping[str, Any]] | None = None  # what a statement says beside the arguments

    def arguments(self, problem: Problem, noise_multiplier: float) -> Arguments:
        """What the recipe is called with: the user's choices, and defaults for the rest."""
        choices = problem.chosen
        found = self.defaults(problem, noise_multiplier)
        chosen = {"clip_bound": choices.clip_bound, "learning_rate": choices.learning_rate}
        explicit = {name: value for name, value in chosen.items() if value is not None and name in found}
        options = {name: value for name, value in choices.options.items() if name != "scale"}
        noise = {"noise_multiplier": noise_multiplier} if self.noisy else {}
        return {**noise, **found, **explicit, **options}

    def build(self, problem: Problem, noise_multiplier: float) -> Recipe:
        """The recipe for this problem, with this noise."""
        return self.recipe(**self.arguments(problem, noise_multiplier)).protecting(problem.unit)

    def settings(self, problem: Problem, noise_multiplier: float) -> dict[str, Any]:
        """What a statement shows of the arguments."""
        arguments = self.arguments(problem, noise_multiplier)
        scale = problem.chosen.options.get("scale")
        return {
            "noise multiplier": arguments.get("noise_multiplier", "none"),
            "batch size": describe_batch(self.recipe(**arguments), problem),
            **{name.replace("_", " "): _shown(value) for name, value in arguments.items() if name not in HIDDEN},
            **({} if scale is None else {"scale": scale if isinstance(scale, str) else "given, a number for each column"}),
            **({} if self.remarks is None else self.remarks(problem, arguments)),
        }

    def check(self, choices: Mapping[str, Any], loss: LossFacts, *, public: bool) -> None:
        """Refuse choices (by name; None is no choice) that this method has no use for, and what it lacks."""
        for name, reason in self.refuses.items():
            if choices.get(name) is not None:
                raise InputError(reason)
        if self.convex and choices.get("penalty") not in (None, "ridge"):
            raise InputError(f"{self.name} is for convex objectives, which penalty={choices['penalty']!r} is not. Use 'ridge'.")
        if self.bounded and math.isinf(loss.steepness):
            raise InputError(
                f"{self.name} needs gradients of bounded length, which squared loss has not. HuberRegressor has them."
            )
        options = choices["options"]
        self._check_options(options)
        if not self.private and options.get("without_privacy") is not True:
            raise CompositionError(no_guarantee(self.name))
        self._check_side(options.get("scale"), public)

    def _check_options(self, options: Mapping[str, Any]) -> None:
        if unknown := [name for name in options if name not in self.options]:
            raise InputError(
                f"{self.name} has no option {', '.join(map(str, unknown))}; its options are {', '.join(self.options) or 'none'}."
            )
        for name, value in options.items():
            if not self.options[name].accepts(value):
                raise InputError(f"option {name} of {self.name} is {reprlib.repr(value)}, but it is {self.options[name].words}.")

    def _check_side(self, scale: object, public: bool) -> None:
        if not public and scale is None and self.uses_public:
            other = ", or a scale among its options: the typical size of each coordinate's gradient" if self.uses_scale else ""
            raise InputError(f"{self.name} needs public data, rows and targets like the private ones{other}.")
        if public and scale is not None:
            raise InputError(
                "both public data and a scale are given, but gradients are divided by one or the other: leave one out."
            )


def no_guarantee(method: str) -> str:
    """Why a method without a guarantee is refused, and what to say to have it."""
    return (
        f"{method} uses the examples in the clear: its model has no privacy guarantee. For a comparison on data that may be "
        "published, set its option without_privacy to true."
    )


def describe_batch(recipe: Recipe, problem: Problem) -> str:
    """How the recipe samples, in words."""
    noun = {"linear": "rows", "network": "examples", "federated": "users"}[problem.model]
    noun = "persons" if problem.unit == each_person() else noun
    samplers = [getattr(one, "sampler", full_batch()) for one in recipe.measurements]
    match samplers[-1]:
        case poisson(sampling_probability=probability):
            rows = "" if rows_drawn(problem.unit) is None else " rows"
            return f"{probability * problem.size:.6g} of {problem.size}{rows} on average (Poisson)"
        case fixed_size(batch_size=batch):
            return f"{batch} of {problem.size}"
        case disjoint_batches(batches=batches):
            return f"{problem.size / batches:.6g} on average, in {batches} disjoint parts"
        case _:
            return f"all {noun}"


def _shown(value: Any) -> Any:
    if callable(value):
        return "a schedule"
    if isinstance(value, float) and math.isinf(value):  # which JSON has no number for
        return "no limit"
    return value if isinstance(value, Real | str | bool | None) else str(value)
