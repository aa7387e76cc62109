"""Clips: how far one example can move the sum.

A clip is a value: a bound, and the factor that shortens a vector of a given norm. Vectors are asked for their clipped sum
(`vectors.clipped_sum(clip, weight, out)`), which changes by at most the bound, in the clip's norm, when one example is added or
removed. The bound may depend on what is already public, never on the batch.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.needs import COUNTS, EARLIER_BOUND, PREVIOUS_ITERATE, Needs, Offer, OracleNeed
from privopt.perexample.grads import Array, ClipFactors, LayerFactors
from privopt.state import PublicState

LEAST = 1e-15  # a smaller bound is lost in the rounding of norms, which are sums of squares
DRIFT = 1e6  # the factor by which an adaptive bound may differ from the first one


class Clip(ClipFactors, Protocol):
    """A bound on each vector. It declares what it needs beside the vectors: `privopt.needs`."""

    @property
    def bound(self) -> float:
        """What the norm of no clipped vector exceeds."""
        ...

    def at(self, state: PublicState) -> "Clip":
        """The clip of a round: its bound is a number, which may depend on where the public iterates are."""
        ...


@dataclass(frozen=True)
class l2:  # noqa: N801  # a constructor that reads as a phrase
    """Clip to an l2 norm: for Gaussian and gamma-norm noise.

    **Guarantee** ‖Σ gᵢ wᵢ‖₂ changes by at most `bound` when one example is added or removed, and 2 × `bound` when one is
    replaced.
    """

    bound: float
    order: ClassVar[Literal[1, 2]] = 2

    def __post_init__(self) -> None:
        _check(self.bound)

    def at(self, state: PublicState) -> "l2":
        return self

    def factors(self, norms: Array, weight: float = 1.0) -> Array:
        return _shorten(norms, self.bound, weight)


@dataclass(frozen=True)
class l1:  # noqa: N801
    """Clip to an l1 norm: for Laplace noise. **Guarantee** as `l2`, in the l1 norm."""

    bound: float
    order: ClassVar[Literal[1, 2]] = 1

    def __post_init__(self) -> None:
        _check(self.bound)

    def at(self, state: PublicState) -> "l1":
        return self

    def factors(self, norms: Array, weight: float = 1.0) -> Array:
        return _shorten(norms, self.bound, weight)


@dataclass(frozen=True)
class automatic:  # noqa: N801
    """Scale every vector to almost the same l2 norm: g · C/(‖g‖ + γ). Bu, Wang, Zha, Karypis: Automatic Clipping (AUTO-S).

    The bound C and the learning rate are then one number, so there is one less to choose. γ is the `stability`: vectors that are
    short beside it keep their proportions. **Guarantee** as `l2`: ‖g‖ · C/(‖g‖ + γ) < C.

    >>> import numpy as np
    >>> from privopt.perexample.grads import Materialized
    >>> Materialized(np.array([[3.0, 0.0], [0.0, 1.0]])).clipped_sum(automatic(1.0, stability=1.0))
    array([0.75, 0.5 ])
    """

    bound: float
    stability: float = 0.01
    order: ClassVar[Literal[1, 2]] = 2

    def __post_init__(self) -> None:
        _check(self.bound)
        if not LEAST <= self.stability < math.inf:
            raise CompositionError(
                f"automatic(…, stability={self.stability}): a vector of length 0 needs a finite number ≥ {LEAST}."
            )

    def at(self, state: PublicState) -> "automatic":
        return self

    def factors(self, norms: Array, weight: float = 1.0) -> Array:
        return self.bound / (norms + self.stability) * weight


class _Fixed(dict[str, float]):
    """A dict that does not change: a bound that grew after the noise was calibrated would not be hidden by it."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise CompositionError("the bounds of a clip do not change: make another clip.")

    def __reduce__(self) -> Any:
        return _Fixed, (dict(self),)

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse


@dataclass(frozen=True)
class per_layer(LayerFactors):  # noqa: N801
    """Clip the parameters of each layer to an l2 bound of their own. A linear model is one layer, whose name is "".

    `bounds` are by name: of a parameter ("0.weight"), or of a module ("0"), whose parameters are then clipped together; the
    longest name that fits counts.

    **Guarantee** as `l2`, with the bound √Σ C²ₖ: layers are different coordinates, and in those of layer k one example moves the
    sum by at most Cₖ.

    >>> per_layer({"encoder": 3.0, "head": 4.0}).bound
    5.0
    """

    bounds: Mapping[str, float]
    order: ClassVar[Literal[1, 2]] = 2

    def __post_init__(self) -> None:
        if not self.bounds:
            raise CompositionError("per_layer({}): say a bound for each layer.")
        for bound in self.bounds.values():
            _check(bound)
        object.__setattr__(self, "bounds", _Fixed(self.bounds))

    @property
    def needs(self) -> Needs:
        return frozenset({_Layers(tuple(self.bounds))})

    @property
    def bound(self) -> float:
        return math.hypot(*self.bounds.values())

    def at(self, state: PublicState) -> "per_layer":
        return self

    def factors(self, norms: Array, weight: float = 1.0) -> Array:
        return self.layer_factors({"": norms}, weight)[""]

    def layer_factors(self, norms: Mapping[str, Array], weight: float = 1.0) -> dict[str, Array]:
        layers = _layers(norms, self.bounds)
        lengths = {layer: _length([norms[name] for name in norms if layers[name] == layer]) for layer in self.bounds}
        shortened = {layer: _shorten(length, self.bounds[layer], weight) for layer, length in lengths.items()}
        return {name: shortened[layer] for name, layer in layers.items()}


@dataclass(frozen=True)
class _Layers(OracleNeed):
    """Layers that these names fit: each parameter falls under a name, and each name has a parameter."""

    names: tuple[str, ...]

    def missing(self, offer: Offer) -> str | None:
        layers = _layers(offer.layers, self.names)
        if bare := [name for name, layer in layers.items() if layer is None]:
            return f"per_layer has no bound for {bare[0] or 'a model of one layer'}. Give each layer one, by name."
        if unused := set(self.names) - set(layers.values()):
            return f"per_layer has bounds for {sorted(unused)}, which are no layers: {sorted(offer.layers)} are."
        return None


def _layers(parameters: Iterable[str], names: Collection[str]) -> dict[str, Any]:
    """The name that each parameter falls under: the longest that is its own or its module's; `None` if there is none."""

    def fits(parameter: str, name: str) -> bool:
        return not name or parameter == name or parameter.startswith(f"{name}.")

    return {one: max((name for name in names if fits(one, name)), key=len, default=None) for one in parameters}


@dataclass(frozen=True)
class l2_moved:  # noqa: N801
    """Clip to `rate` × the distance between the two last iterates, but to no more than `most`: for differences of gradients.

    For a loss whose gradient is `rate`-Lipschitz nothing is cut, unless `most` cuts it. **Guarantee** as `l2`: the iterates are
    public, so the bound of a round depends on no example of it.

    >>> import numpy as np
    >>> l2_moved(2.0).at(PublicState(np.array([3.0, 4.0]), np.zeros(2))).bound
    10.0
    """

    rate: float
    most: float = math.inf
    order: ClassVar[Literal[1, 2]] = 2
    needs: ClassVar[Needs] = frozenset({PREVIOUS_ITERATE})

    def __post_init__(self) -> None:
        _check(self.rate)
        if not self.most >= 0:
            raise CompositionError(f"l2_moved(…, most={self.most}): the largest bound is a number ≥ 0.")

    @property
    def bound(self) -> float:
        return self.most  # until it is known how far the iterate moved

    def at(self, state: PublicState) -> l2:
        xp = array_namespace(state.current)
        bound = min(self.rate * float(xp.linalg.vector_norm(state.current - state.previous)), self.most)
        return l2(bound if bound >= LEAST else 0.0)

    def factors(self, norms: Array, weight: float = 1.0) -> Array:
        raise CompositionError("l2_moved bounds nothing before it is known how far the iterate moved: use .at(state).")


@dataclass(frozen=True)
class adaptive:  # noqa: N801
    """Clip to an l2 bound that follows a quantile of the vectors' norms. Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021).

    After a round with the bound C, a noisy count says which share b of the drawn examples had a norm of at most C, and the next
    bound is C · exp(−rate · (b − quantile)). The count takes `share` of what the round costs (`Measurement` divides the noise),
    so the round costs what it would with a bound that is fixed.

    **Guarantee** as `l2`, with the bound of the round: it depends on answers that are private already.

    >>> [round(adaptive(1.0).next_bound(2.0, within), 3) for within in (1.0, 0.0)]  # half of them should be within
    [1.81, 2.21]
    """

    bound: float  # of the first round
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.02
    order: ClassVar[Literal[1, 2]] = 2
    needs: ClassVar[Needs] = frozenset({EARLIER_BOUND, COUNTS})

    def __post_init__(self) -> None:
        _check(self.bound)
        if not (self.bound > 0 and 0 < self.quantile < 1 and 0 < self.rate < math.inf and 0 < self.share < 1):
            raise CompositionError(
                f"{self}: bound and rate are finite numbers > 0; quantile and share lie between 0 and 1, which they are not."
            )

    def at(self, state: PublicState) -> l2:
        return l2(self.bound)  # of the first round; later ones are kept by the measurement

    def next_bound(self, bound: float, within: float) -> float:
        """The bound after a round with this bound, given the noisy share of vectors within it; at most 10⁶ times the first."""
        moved = bound * math.exp(-self.rate * (min(max(within, 0.0), 1.0) - self.quantile))
        return min(max(moved, self.bound / DRIFT, LEAST), self.bound * DRIFT)

    def factors(self, norms: Array, weight: float = 1.0) -> Array:
        raise CompositionError("adaptive bounds nothing before its round is known: use .at(state).")


def check_factors(clip: Clip) -> None:
    """Try a clip of the user's own on vectors of many lengths: none may come out longer than its bound."""
    if type(clip) in (l1, l2, automatic, per_layer, l2_moved, adaptive):
        return
    bound, norms = clip.bound, np.concatenate([[0.0], np.logspace(-12, 12, 97)])
    if not isinstance(bound, Real) or not 0 <= float(bound) < math.inf:
        raise CompositionError(f"{type(clip).__name__} has the bound {bound}, but it is a finite number ≥ 0.")
    with np.errstate(all="ignore"):
        lengths = np.abs(clip.factors(norms)) * norms
    if not bool((lengths <= float(bound) * (1 + 1e-6)).all()):
        raise CompositionError(
            f"{type(clip).__name__} has the bound {bound}, but its factors leave vectors longer than that: one example "
            "would move the sum by more than the noise hides."
        )


def as_clip(clip: float | Clip) -> Clip:
    """A clip; a number is an l2 bound."""
    if isinstance(clip, float | Real):
        return l2(float(clip))
    return clip


def _check(bound: float) -> None:
    if not isinstance(bound, Real) or not (bound == 0 or LEAST <= float(bound) < math.inf):
        raise CompositionError(f"a clip bound is 0, or a finite number ≥ {LEAST}, not {bound}.")


def _shorten(norms: Array, bound: float, weight: float) -> Array:
    """weight · min(1, C/‖gᵢ‖); 0 under a zero bound."""
    if bound == 0:
        return array_namespace(norms).zeros_like(norms)
    return bound * weight / (np.maximum(norms, bound) if isinstance(norms, np.ndarray) else norms.clip(bound))


def _length(norms: list[Array]) -> Array:
    """√Σ ‖gₖ‖², for each example. (Squares of tiny numbers would be 0, and those of huge ones infinite.)"""
    xp = array_namespace(norms[0])
    total = norms[0]
    for other in norms[1:]:
        total = xp.hypot(total, other)
    return total
