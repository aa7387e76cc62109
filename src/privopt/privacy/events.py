"""Events: what was released, in a form that an accountant can price.

An event describes what was *done* (the noise relative to how far **one added or removed unit** can move the answer, and
the sampling); the neighbouring relation is the accountant's question. The kinds are dp-accounting's, and two
that it lacks:

- `PureDpEvent(ε)`: any ε-DP mechanism, whatever its noise (gamma-norm noise, a noisy minimum, ...);
- `FailureDpEvent(δ)`: a mechanism that reveals nothing except with probability δ (the threshold of a private histogram).

Two events are the same when their atoms, in order, are the same: `compose` gives the one canonical form.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from privopt.errors import LedgerError
from privopt.limits import MOST_ROUNDS

__all__ = [
    "ComposedDpEvent",
    "DpEvent",
    "FailureDpEvent",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "MixtureOfGaussiansDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "PoissonSampledDpEvent",
    "PureDpEvent",
    "RepeatAndSelectDpEvent",
    "SampledWithoutReplacementDpEvent",
    "SelfComposedDpEvent",
    "atoms",
    "compose",
    "describe",
    "from_json",
    "to_json",
]


@dataclass(frozen=True)
class PureDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting is untyped
    """Any mechanism that is ε-DP when one unit is added or removed."""

    epsilon: float


@dataclass(frozen=True)
class FailureDpEvent(DpEvent):  # type: ignore[misc]
    """A release that adding or removing one unit changes with probability at most δ, and else not at all."""

    delta: float


def atoms(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """The event's parts in order, each with its count; consecutive equal parts are counted together.

    >>> list(atoms(compose([GaussianDpEvent(1.0), GaussianDpEvent(1.0)])))
    [(GaussianDpEvent(noise_multiplier=1.0), 2)]
    """
    pending: DpEvent | None = None
    total = 0
    for part, count in _flatten(event, 1):
        if pending is not None and part == pending:
            total += count
            continue
        if pending is not None:
            yield pending, total
        pending, total = part, count
    if pending is not None:
        yield pending, total


def _flatten(event: DpEvent, times: int) -> Iterator[tuple[DpEvent, int]]:
    match event:
        case NoOpDpEvent():
            return
        case SelfComposedDpEvent(event=inner, count=count) if not isinstance(inner, ComposedDpEvent):
            yield from _flatten(inner, count * times)
        case SelfComposedDpEvent(event=inner, count=count):
            for _ in range(count * times):  # order matters: (a, b) twice is a b a b
                yield from _flatten(inner, 1)
        case ComposedDpEvent(events=parts):
            for _ in range(times):
                for part, count in _runs(parts):
                    yield from _flatten(part, count)
        case _:
            if times:
                yield event, times


def _runs(events: Iterable[DpEvent]) -> Iterator[tuple[DpEvent, int]]:
    """Count consecutive references to one object (plans repeat them) without comparing events."""
    held, count = None, 0
    for event in events:
        if event is not held:
            if held is not None:
                yield held, count
            held, count = event, 0
        count += 1
    if held is not None:
        yield held, count


def compose(events: Iterable[DpEvent]) -> DpEvent:
    """One event for all of them, in canonical form.

    >>> compose([GaussianDpEvent(2.0)] * 3)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    parts = [event if count == 1 else SelfComposedDpEvent(event, count) for event, count in atoms(ComposedDpEvent(list(events)))]
    if not parts:
        return NoOpDpEvent()
    return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)


def describe(event: DpEvent) -> str:
    """Describe the event in words.

    >>> describe(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 300))
    '300 × Gaussian mechanism, noise multiplier 1.5, Poisson sampling with probability 0.01'
    """
    return "; ".join((f"{count} × " if count > 1 else "") + _phrase(part) for part, count in atoms(event)) or "nothing"


def _phrase(event: DpEvent) -> str:
    match event:
        case GaussianDpEvent(noise_multiplier=noise):
            return f"Gaussian mechanism, noise multiplier {noise:.4g}"
        case LaplaceDpEvent(noise_multiplier=noise):
            return f"Laplace mechanism, noise multiplier {noise:.4g}"
        case PureDpEvent(epsilon=epsilon):
            return f"pure DP mechanism, ε = {epsilon:.4g}"
        case FailureDpEvent(delta=delta):
            return f"release with failure probability {delta:.3g}"
        case PoissonSampledDpEvent(sampling_probability=probability, event=inner):
            return f"{_phrase(inner)}, Poisson sampling with probability {probability:.6g}"
        case MixtureOfGaussiansDpEvent(standard_deviation=noise, sensitivities=moves, sampling_probs=probabilities):
            mean = sum(move * probability for move, probability in zip(moves, probabilities, strict=True))
            return (
                f"Gaussian mechanism, noise multiplier {noise:.4g} for one row, Poisson sampling of rows: of at most "
                f"{max(moves):g} rows of one person {mean:.4g} on average"
            )
        case SampledWithoutReplacementDpEvent(source_dataset_size=size, sample_size=sample, event=inner):
            return f"{_phrase(inner)}, fixed-size samples of {sample} of {size}"
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            law = "geometric" if shape == 1 else f"negative binomial of shape {shape:.3g}"
            return f"the best of a secret, random number of trials ({law}, mean {mean:.4g}), each: {describe(inner)}"
        case NonPrivateDpEvent():
            return "release without privacy"
        case _:
            return str(event)


def to_json(event: DpEvent) -> dict[str, Any]:
    """A JSON form that `from_json` reads back, exactly.

    >>> from_json(to_json(PoissonSampledDpEvent(0.1, GaussianDpEvent(1 / 3)))).event.noise_multiplier == 1 / 3
    True
    """
    match event:
        case NoOpDpEvent():
            return {"kind": "nothing"}
        case NonPrivateDpEvent():
            return {"kind": "non-private"}
        case GaussianDpEvent(noise_multiplier=noise):
            return {"kind": "gaussian", "noise_multiplier": float(noise)}
        case LaplaceDpEvent(noise_multiplier=noise):
            return {"kind": "laplace", "noise_multiplier": float(noise)}
        case PureDpEvent(epsilon=epsilon):
            return {"kind": "pure", "epsilon": float(epsilon)}
        case FailureDpEvent(delta=delta):
            return {"kind": "failure", "delta": float(delta)}
        case PoissonSampledDpEvent(sampling_probability=probability, event=inner):
            return {"kind": "poisson", "sampling_probability": float(probability), "event": to_json(inner)}
        case MixtureOfGaussiansDpEvent(standard_deviation=noise, sensitivities=moves, sampling_probs=probabilities):
            return {
                "kind": "gaussian-mixture",
                "noise_multiplier": float(noise),
                "moves": [float(move) for move in moves],
                "probabilities": [float(probability) for probability in probabilities],
            }
        case SampledWithoutReplacementDpEvent(source_dataset_size=size, sample_size=sample, event=inner):
            return {"kind": "fixed-size", "size": int(size), "sample": int(sample), "event": to_json(inner)}
        case RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            return {"kind": "best", "mean": float(mean), "shape": float(shape), "event": to_json(inner)}
        case SelfComposedDpEvent(event=inner, count=count):
            return {"kind": "repeated", "count": int(count), "event": to_json(inner)}
        case ComposedDpEvent(events=parts):
            return {"kind": "composed", "events": [to_json(part) for part in parts]}
        case _:
            raise LedgerError(f"{type(event).__name__} has no form in a ledger.")


def from_json(value: dict[str, Any]) -> DpEvent:
    """The event that `to_json` wrote."""
    match value:
        case {"kind": "nothing"}:
            return NoOpDpEvent()
        case {"kind": "non-private"}:
            return NonPrivateDpEvent()
        case {"kind": "gaussian", "noise_multiplier": float(noise)} if noise >= 0:
            return GaussianDpEvent(noise)
        case {"kind": "laplace", "noise_multiplier": float(noise)} if noise >= 0:
            return LaplaceDpEvent(noise)
        case {"kind": "pure", "epsilon": float(epsilon)} if epsilon >= 0:
            return PureDpEvent(epsilon)
        case {"kind": "failure", "delta": float(delta)} if 0 <= delta <= 1:
            return FailureDpEvent(delta)
        case {"kind": "poisson", "sampling_probability": float(probability), "event": dict(inner)} if 0 <= probability <= 1:
            return PoissonSampledDpEvent(probability, from_json(inner))
        case {
            "kind": "gaussian-mixture",
            "noise_multiplier": float(noise),
            "moves": list(moves),
            "probabilities": list(probabilities),
        } if noise >= 0 and _is_mixture(moves, probabilities):
            return MixtureOfGaussiansDpEvent(noise, tuple(moves), tuple(probabilities))
        case {"kind": "fixed-size", "size": int(size), "sample": int(sample), "event": dict(inner)} if 0 <= sample <= size:
            return SampledWithoutReplacementDpEvent(size, sample, from_json(inner))
        case {"kind": "best", "mean": float(mean), "shape": float(shape), "event": dict(inner)} if (
            1 <= mean < math.inf and 0 <= shape < math.inf
        ):
            return RepeatAndSelectDpEvent(from_json(inner), mean, shape)
        case {"kind": "repeated", "count": int(count), "event": dict(inner)} if count >= 0:
            repeated = SelfComposedDpEvent(from_json(inner), count)
            if _parts(repeated) > MOST_ROUNDS:
                raise LedgerError(f"an event has more than {MOST_ROUNDS} parts.")
            return repeated
        case {"kind": "composed", "events": list(parts)}:
            return ComposedDpEvent([from_json(part) for part in parts])
        case {"kind": str(kind)}:
            raise LedgerError(f"unknown event of kind {kind[:80]!r}, or one with impossible numbers; perhaps of a newer privopt.")
        case _:
            raise LedgerError("unknown event: it is not an object with a kind.")


def _is_mixture(moves: list[Any], probabilities: list[Any]) -> bool:
    """Whether these are lengths, and the probability of each."""
    numbers = [*moves, *probabilities]
    if len(moves) != len(probabilities) or not all(isinstance(one, float) and 0 <= one < math.inf for one in numbers):
        return False
    return max(moves, default=0.0) > 0 and math.isclose(math.fsum(probabilities), 1.0)


def _parts(event: DpEvent) -> int:
    """How many parts `atoms` visits one by one; repetitions of a single part count once."""
    match event:
        case ComposedDpEvent(events=parts):
            return sum(map(_parts, parts))
        case SelfComposedDpEvent(event=inner, count=count):
            return count * parts if (parts := _parts(inner)) > 1 else parts
        case _:
            return 1
