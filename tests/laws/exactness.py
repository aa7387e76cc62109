"""Law 3, and law 1 with it, for any network: what the engine gives is what plain autograd gives for each example alone.

A `Case` is a random architecture, a random batch and random questions about its gradients; `check` fails where norms, sums or
clipped sums are not those of the gradients that are formed one example at a time, or where the clipped vector of one example is
longer than its bound.

How far two correct computations may be apart is measured: the same gradients again, with all numbers moved by about as much as
rounding moves them. First the parameters and the examples are moved, once. That misses the rounding of what cancels however they
are moved (P − P for a module that is called twice on the same, x − mean(x) for an x that is constant), and by chance it may
hardly move a vector that is sensitive in one direction only. So what it does not explain is measured again, with the result of
every operation moved as well (fl(x ∘ y) = (x ∘ y)(1 + δ), with random δ; Parker, Monte Carlo arithmetic, 1997).
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from privopt.measure.clips import LEAST, Clip, automatic, l1, l2, l2_moved, per_layer
from privopt.perexample.networks import Recorder, TorchGrads, TorchOracle, TorchPersonOracle, UnsupportedLayer
from privopt.perexample.networks.examples import rows_of
from privopt.perexample.networks.factors import factor, outer, sums
from privopt.perexample.networks.layers import conv
from privopt.perexample.networks.recorder import Way
from privopt.perexample.persons import Persons
from privopt.state import PublicState
from tests.laws.architectures import ARCHITECTURES, TIME, TOKENS, WIDTH, Architecture
from tests.perexample.networks.reference import doubled, squared

EPSILON = {torch.float32: 6e-8, torch.float64: 1e-16}
EXACT = {torch.float32: 1e-5, torch.float64: 1e-9}  # of a vector's length, where nothing cancels
CHAOS = 1e-3  # of a vector's parts: rounding that moves it so far tells that a norm layer divides by almost nothing
PROBES = 3  # measurements with every operation moved
SLACK = 1e-5  # of the bound
SMALLEST = 1e-12  # bound

# ---------------------------------------------------------------- what is asked


class Incomparable(Exception):
    """A case that is refused."""


CHECKED = ("Shared(", "Product(")  # parts for which the check finds another way than the first


@dataclass(frozen=True)
class Batch:
    """What kinds of examples there are. The numbers are drawn from the seed."""

    rows: tuple[Literal["usual", "tiny", "huge", "zero", "constant", "copy"], ...]
    seed: int

    def make(self, architecture: Architecture, outputs: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Inputs with their lengths, and targets."""
        draws = torch.Generator().manual_seed(self.seed)
        examples = len(self.rows)
        x, targets = torch.randn(examples, TIME, WIDTH, generator=draws), torch.randn(examples, outputs, generator=draws)
        tokens = torch.randint(TOKENS, (examples, TIME), generator=draws)
        lengths = torch.randint(1, TIME + 1, (examples,), generator=draws)
        for i, kind in enumerate(self.rows):
            if kind in ("tiny", "huge"):
                x[i] *= 1e-4 if kind == "tiny" else 1e3
            elif kind == "zero":
                x[i], targets[i], tokens[i] = 0, 0, 0
            elif kind == "constant":
                x[i], targets[i], tokens[i] = 30, 0, 3
            elif kind == "copy" and i:
                x[i], targets[i], tokens[i], lengths[i] = x[i - 1], targets[i - 1], tokens[i - 1], lengths[i - 1]
        inputs = (x if architecture.source is None else tokens, lengths)
        return (doubled(inputs), doubled(targets)) if architecture.double else (inputs, targets)


@dataclass(frozen=True)
class Minus:
    """The same vectors at another point: that far away, or where some parameters' signs are turned, so that gradients of far
    points may all but cancel."""

    apart: float | Literal["turned"]
    weight: float = 1.0


@dataclass(frozen=True)
class Scaled:
    """Times a public diagonal; of several sizes if it is `uneven`."""

    uneven: bool = False


@dataclass(frozen=True)
class Shifted:
    """Plus a public vector: a random one, or one that all but cancels the first example's."""

    opposite: bool
    weight: float = 1.0


Step = Minus | Scaled | Shifted
WAYS: dict[str, tuple[int, int, int, int]] = {  # TRAFFIC, KEEP, SHARE, BLOCK
    "usual": (outer.TRAFFIC, outer.KEEP, outer.SHARE, factor.BLOCK),
    "Gram": (10**9, 0, 0, factor.BLOCK),
    "formed and dropped": (0, 0, 0, factor.BLOCK),
    "formed and kept": (0, 10**9, 0, factor.BLOCK),
    "a few at a time": (0, 0, 0, 50),
    "grouped": (0, 10**9, 0, factor.BLOCK),
    "grouped, a few at a time": (0, 0, 0, 50),
}
GROUPED = {"MANY": 0, "CHANNELS": 1, "FEW": 0, "SMALL": 10**9}  # every convolution that may be computed as a grouped one
NORMS = ("l2", "l1", "by layer")


@dataclass(frozen=True)
class Case:
    """An architecture, a batch, and what is asked: of which vectors, in which order, with which bounds."""

    architecture: Architecture
    batch: Batch
    steps: tuple[Step, ...] = ()
    bound: float = 0.3  # times the usual norm
    way: str = "usual"
    first: tuple[str, ...] = ()  # norms that were asked for before
    chunk: int | None = None
    persons: tuple[int, ...] = ()  # whose rows they are, by how many each has; none: each row counts by itself


BATCHES = st.builds(
    Batch,
    rows=st.lists(st.sampled_from(["usual", "tiny", "huge", "zero", "constant", "copy"]), min_size=1, max_size=4).map(tuple),
    seed=st.integers(0, 2**16),
)
STEPS = st.one_of(
    st.builds(Minus, apart=st.sampled_from([1e-6, 1e-3, 1.0, "turned"]), weight=st.sampled_from([1.0, 0.7])),
    st.builds(Scaled, uneven=st.booleans()),
    st.builds(Shifted, opposite=st.booleans(), weight=st.sampled_from([1.0, 0.3])),
)
CASES = st.builds(
    Case,
    architecture=ARCHITECTURES,
    batch=BATCHES,
    steps=st.one_of(st.just(()), st.lists(STEPS, max_size=2).map(tuple)),
    bound=st.sampled_from([0.3, 1e-8, 10.0]),
    way=st.sampled_from(list(WAYS)),
    first=st.lists(st.sampled_from(NORMS), max_size=3, unique=True).map(tuple),
    chunk=st.sampled_from([None, 2]),
)


@st.composite
def cases_of_persons(draw: st.DrawFn) -> Case:
    """A case whose rows belong to persons: several to some of them."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    case = draw(CASES)
    rows = (sum(counts) * case.batch.rows)[: sum(counts)]
    return replace(case, batch=replace(case.batch, rows=rows), persons=counts)


# ---------------------------------------------------------------- the obvious slow way


@dataclass(frozen=True)
class Rows:
    """Vectors that exist, in double precision; almost the same in the model's precision, which tells how much rounding does,
    (probes, examples, parameters); and what they are made of, without signs."""

    exact: Tensor
    rough: Tensor
    sizes: Tensor

    def minus(self, other: "Rows", weight: float) -> "Rows":
        sizes = self.sizes + abs(weight) * other.sizes
        return Rows(self.exact - weight * other.exact, self.rough - weight * other.rough, sizes)

    def scaled(self, diagonal: Tensor) -> "Rows":
        by = diagonal.double()
        return Rows(self.exact * by, self.rough * by, self.sizes * by.abs())

    def shifted(self, vector: Tensor, weight: float) -> "Rows":
        by = weight * vector.double()
        return Rows(self.exact + by, self.rough + by, self.sizes + by.abs())

    def of_persons(self, counts: tuple[int, ...]) -> "Rows":
        """The mean of each person's."""
        of = torch.zeros(len(counts), sum(counts), dtype=torch.float64)
        for person, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True)):
            of[person, end - count : end] = 1 / count
        return Rows(of @ self.exact, of @ self.rough, of @ self.sizes)

    def errors(self, dtype: torch.dtype, where: slice = slice(None)) -> Tensor:
        """How far the engine's vectors may be from these: any distance where rounding is all there is.

        A rounding is at most ε, uniform, and a probe moves by 2 ε, normal: 3.5 times as much. In the worst case there is one
        direction that counts. Then 30 times one probe is too little with probability 0.006, and 10 times the farthest of three
        with probability 2 · 10⁻⁵.
        """
        exact, sizes, gaps = self.exact[:, where].norm(dim=1), self.sizes.norm(dim=1), self.rough - self.exact
        far = gaps[:, :, where].norm(dim=2)
        errors = EXACT[dtype] * exact + 30 * far[0] + 100 * EPSILON[dtype] * sizes + 1e-18
        errors = errors.masked_fill(gaps[0].norm(dim=1) > CHAOS * sizes, torch.inf)
        return errors.maximum(10 * far[1:].amax(0)) if len(far) > 1 else errors


class Moved(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """The result of every operation is this much (relatively) other than it is."""

    def __init__(self, apart: float, draws: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._apart, self._draws = apart, draws

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(result.alias_info is not None for result in func._schema.returns):
            return found  # a view, or written in place: of numbers that were moved
        return tuple(map(self._other, found)) if isinstance(found, tuple) else self._other(found)

    def _other(self, found: Any) -> Any:
        return moved(found, self._apart, self._draws) if isinstance(found, Tensor) and not found.is_sparse else found


def moved(numbers: Tensor, apart: float, draws: torch.Generator) -> Tensor:
    """Numbers that are this much (relatively) other; whole numbers as they are."""
    if not numbers.is_floating_point():
        return numbers
    return numbers * (1 + apart * torch.randn(numbers.shape, generator=draws, dtype=numbers.dtype))


def drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout, which draws in one order however the numbers lie in memory."""
    return x * (torch.rand(x.shape) >= p) / (1 - p) if training and p else x


def drop_as_mapped(place: int, examples: int, drawn: list[Tensor]) -> Callable[..., Tensor]:
    """The same for one of the examples that are mapped: torch draws for all of them at once, call by call."""
    calls = itertools.count()

    def own(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not p:
            return x
        call = next(calls)
        if call == len(drawn):
            drawn.append(torch.rand(examples, *x.shape))
        return x * (drawn[call][place] >= p) / (1 - p)

    return own


class Slow:
    """Gradients by plain autograd, with this many further probes. What is dropped is drawn as in the engine's `way`."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor, seed: int, probes: int) -> None:
        self._model, self._inputs, self._targets, self._seed, self._probes = model, inputs, targets, seed, probes
        self.way: Way = "together"
        self.random = any(isinstance(module, nn.Dropout) and module.p for module in model.modules())

    def __call__(self) -> Rows:
        exact, numbers = self._rows(torch.float64, 0.0), self._inputs[0].flatten(1).double()
        parts = (numbers.abs().amax(1).square() / exact.shape[1] ** 0.5).unsqueeze(1)  # what a saturated slope may keep to itself
        sizes = exact.abs().maximum(parts if self._inputs[0].is_floating_point() else exact.abs())
        dtype = self._targets.dtype
        rough = [self._rows(dtype, 2 * EPSILON[dtype], probe) for probe in range(1 + self._probes)]
        return Rows(exact, torch.stack(rough), sizes)

    def _rows(self, dtype: torch.dtype, apart: float, probe: int = 0) -> Tensor:
        """In this precision, with all numbers this much (relatively) other than they are; and, in all probes but the first, the
        result of every operation."""
        with torch.no_grad():
            self._model(*self._inputs)  # weight norm keeps a tensor that cannot be copied while it has a graph
        model, draws = copy.deepcopy(self._model).to(dtype), torch.Generator().manual_seed(self._seed + probe)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(moved(parameter, apart, draws))
        cast = [part.to(dtype) if part.is_floating_point() else part for part in (*self._inputs, self._targets)]
        *inputs, targets = [moved(part, apart, draws) for part in cast]
        with Moved(apart, draws) if probe else nullcontext():
            return self._found(model, tuple(inputs), targets)

    def _found(self, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """One gradient at a time."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.default_generator.manual_seed(self._seed)
        losses = squared(model(*inputs), targets) if self.random and self.way == "together" else None
        rows, drawn = list[Tensor](), list[Tensor]()
        for i in range(len(targets)):
            own, target = rows_of((inputs, targets), slice(i, i + 1))
            with pytest.MonkeyPatch.context() as patch:
                if self.way == "mapped":
                    patch.setattr(F, "dropout", drop_as_mapped(i, len(targets), drawn))
                value = squared(model(*own), target).sum() if losses is None else losses[i]
            found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            pairs = zip(found, parameters, strict=True)
            rows.append(torch.cat([(torch.zeros_like(p) if g is None else g.to_dense()).reshape(-1) for g, p in pairs]))
        return torch.stack(rows).double()


# ---------------------------------------------------------------- the check


def check(case: Case) -> None:
    """Fail unless everything that is asked in this case is what it should be."""
    with suppress(Incomparable), _taken(case.way):
        try:
            _Check(case).run()
        except AssertionError:
            _Check(case, PROBES).run()


@contextmanager
def _taken(way: str) -> Iterator[None]:
    """Norms are taken in this way, whatever is cheaper."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("TRAFFIC", "KEEP", "SHARE", "BLOCK"), WAYS[way], strict=True):
            patch.setattr(outer, name, value)
        for module in (factor, sums):
            patch.setattr(module, "BLOCK", WAYS[way][3])
        for name, value in GROUPED.items() if way.startswith("grouped") else ():
            patch.setattr(conv, name, value)
        patch.setattr(F, "dropout", drop)
        yield


class _Check:
    def __init__(self, case: Case, probes: int = 0) -> None:
        self.case = case
        self.model = case.architecture.make(case.batch.seed)
        self.dtype = next(self.model.parameters()).dtype
        outputs = self._outputs()
        self.inputs, self.targets = case.batch.make(case.architecture, outputs)
        self.slow = Slow(self.model, self.inputs, self.targets, case.batch.seed, probes)
        chunk = None if self.slow.random else case.chunk
        unusual = Recorder(self.model).way == "mapped" or any(part in repr(case.architecture) for part in CHECKED)
        try:
            self.rows = TorchOracle(self.model, squared, self.inputs, self.targets, check=unusual, chunk=chunk)
        except UnsupportedLayer:
            if "Opposed(" not in repr(case.architecture):
                raise
            raise Incomparable from None  # the check compares in single precision, too, where P − P is rounding
        self.slow.way = self.rows.way
        self.oracle: Any = self.rows
        if case.persons:
            self.oracle = TorchPersonOracle(self.rows, Persons(np.arange(self.rows.size), np.array(case.persons)))
        self.draws = torch.Generator().manual_seed(case.batch.seed)
        self.points = [self.oracle.flat.vector.clone()]
        self.visited: list[Tensor] = []  # one of them for each time that gradients are needed
        self.vectors: list[Tensor] = []  # public ones, in the order in which they are needed

    def _outputs(self) -> int:
        with torch.no_grad():
            (x, lengths), _ = Batch(("usual",), 0).make(self.case.architecture, 1)
            return int(self.model(x, lengths).shape[1])

    # ---- the vectors

    def _exactly(self, at: Tensor, steps: tuple[Step, ...]) -> Rows:
        """The vectors of these steps, formed. Other points and public vectors are drawn on the way."""
        if not steps:
            self.visited.append(at)
            self.oracle.flat.assign(at.clone())
            return self.slow().of_persons(self.case.persons) if self.case.persons else self.slow()
        rows, step = self._exactly(at, steps[:-1]), steps[-1]
        if isinstance(step, Minus):
            self.points.append(self._elsewhere(at, step))
            return rows.minus(self._exactly(self.points[-1], steps[:-1]), step.weight)
        self.vectors.append(self._vector(step, rows))
        if isinstance(step, Scaled):
            return rows.scaled(self.vectors[-1])
        return rows.shifted(self.vectors[-1], step.weight)

    def _quickly(self, points: Iterator[Tensor], vectors: Iterator[Tensor], steps: tuple[Step, ...], rows: Any) -> Any:
        """The same from the engine."""
        if not steps:
            torch.default_generator.manual_seed(self.case.batch.seed)
            return self._asked(self.oracle(next(points).clone(), rows))
        grads, step = self._quickly(points, vectors, steps[:-1], rows), steps[-1]
        if isinstance(step, Minus):
            return grads.minus(self._quickly(points, vectors, steps[:-1], rows), step.weight)
        if isinstance(step, Scaled):
            return self._asked(grads.scaled(next(vectors)))
        return self._asked(grads.shifted(next(vectors), step.weight))

    def _asked(self, grads: Any) -> Any:
        """After these norms were asked for: what they leave behind must do no harm."""
        for name in self.case.first:
            grads.layer_norms() if name == "by layer" else grads.norms(1 if name == "l1" else 2)
        return grads

    def found(self, rows: Any = None) -> Any:
        """The engine's vectors of these examples."""
        return self._quickly(iter(self.visited), iter(self.vectors), self.case.steps, rows)

    def _elsewhere(self, at: Tensor, step: Minus) -> Tensor:
        if step.apart == "turned":
            signs = torch.randint(2, (len(self.oracle.layout.slices),), generator=self.draws) * 2.0 - 1
            parts = zip(self.oracle.layout.slices.values(), signs, strict=True)
            nearly = at * (1 + 1e-6 * torch.randn(at.shape, generator=self.draws).to(at))
            return torch.cat([nearly[where] * sign for where, sign in parts])
        return at + float(step.apart) * torch.randn(at.shape, generator=self.draws).to(at) * at.abs().mean()

    def _vector(self, step: Step, rows: Rows) -> Tensor:
        noise = torch.randn(rows.exact.shape[1], generator=self.draws)
        if isinstance(step, Scaled):
            vector = noise.abs() + 0.1
            return (10 ** (2 * noise) if step.uneven else vector).to(self.dtype)
        assert isinstance(step, Shifted)
        if not step.opposite:
            return noise.to(self.dtype)
        return (-rows.exact[0] * (1 + 1e-5 * noise) / step.weight).to(self.dtype)

    # ---- the questions

    def run(self) -> None:
        self.wanted = self._exactly(self.points[0], self.case.steps)
        whole, names = self.wanted.errors(self.dtype), self.oracle.layout.slices
        exact = self.wanted.exact
        if not bool(exact.isfinite().all() and self.wanted.rough[0].isfinite().all() and (exact.abs() < 1e15).all()):
            return  # what is not finite is for other tests
        grads, self.alone = self.found(), [self.found([i]) for i in range(len(exact))]
        _close(grads.norms(2), exact.norm(dim=1), whole, "l2 norms")
        _close(grads.norms(1), exact.abs().sum(1), whole * exact.shape[1] ** 0.5, "l1 norms")
        for name, norms in grads.layer_norms().items():
            _close(norms, exact[:, names[name]].norm(dim=1), self.wanted.errors(self.dtype, names[name]), f"norms of {name}")
        weights = torch.linspace(-1, 2.5, len(exact)).double()
        for vectors in (grads, self.found()):  # after norms, and before any
            gap = (vectors.weighted_sum(weights).double() - weights @ exact).norm()
            _close(gap, torch.zeros(()), (weights.abs() * whole).sum(), "weighted sum")
        for clip in self._clips():
            self._check_clip(clip, grads)
            if isinstance(clip, l2):
                self._check_clip(clip, self.found())

    def _clips(self) -> Iterator[Clip]:
        exact, times = self.wanted.exact, self.case.bound
        bound = _typical(exact.norm(dim=1), times)
        yield l2(bound)
        yield l1(_typical(exact.abs().sum(1), times))
        yield automatic(bound, stability=bound)
        slices = self.oracle.layout.slices.items()
        yield per_layer({name: _typical(exact[:, where].norm(dim=1), times) for name, where in slices})
        if len(self.points) > 1 and (moved := float((self.points[0] - self.points[1]).norm())):
            yield l2_moved(bound / moved).at(PublicState(self.points[0], self.points[1]))

    def _check_clip(self, clip: Clip, grads: Any) -> None:
        """The sum of the clipped vectors, and how long that of one example is and how far it moves the sum of all."""
        examples = len(self.wanted.exact)
        total = grads.clipped_sum(clip).double()
        wanted, doubts = self._clipped(clip)
        rounding = SLACK * examples * clip.bound
        gap = (total - wanted.sum(0)).norm()
        _close(gap, torch.zeros(()), doubts.sum() + rounding, f"sum clipped by {clip}")
        for i in range(examples):
            alone = [self.alone[i]]
            if isinstance(grads, TorchGrads):
                alone.append(grads.take(torch.tensor([i])))
                if others := [j for j in range(examples) if j != i]:
                    without = grads.take(torch.tensor(others)).clipped_sum(clip).double()
                    self._check_length(clip, total - without, rounding, f"the sum moves by more than {clip}")
            for one in alone:
                self._check_length(clip, one.clipped_sum(clip).double(), 0.0, f"an example alone is longer than {clip}")

    def _check_length(self, clip: Clip, vector: Tensor, rounding: float, what: str) -> None:
        if isinstance(clip, per_layer):
            for name, bound in clip.bounds.items():
                length = float(vector[self.oracle.layout.slices[name]].norm())
                share = rounding * bound / clip.bound
                assert length <= bound * (1 + SLACK) + share, f"{what}: {length / bound} times the bound of {name}"
            return
        length = float(torch.linalg.vector_norm(vector, clip.order))
        assert length <= clip.bound * (1 + SLACK) + rounding * len(vector) ** (1 / clip.order - 1 / 2), (
            f"{what}: {length / clip.bound} times the bound"
        )

    def _clipped(self, clip: Clip) -> tuple[Tensor, Tensor]:
        """Each vector, clipped, and how far the engine's may be from it: a clip moves two vectors no further apart, and cuts
        both by about the same."""
        if isinstance(clip, per_layer):
            parts = [self._clipped_part(l2(clip.bounds[name]), where) for name, where in self.oracle.layout.slices.items()]
            return torch.cat([vectors for vectors, _ in parts], 1), torch.stack([doubts for _, doubts in parts]).sum(0)
        return self._clipped_part(clip, slice(None))

    def _clipped_part(self, clip: Clip, where: slice) -> tuple[Tensor, Tensor]:
        exact, errors = self.wanted.exact[:, where], self.wanted.errors(self.dtype, where)
        lengths = torch.linalg.vector_norm(exact, clip.order, dim=1)
        if clip.order == 1:
            errors = errors * exact.shape[1] ** 0.5
        least = clip.stability if isinstance(clip, automatic) else 0.0
        weights = clip.bound / (lengths + least) if least else clip.bound / lengths.clamp_min(clip.bound)
        return exact * weights.unsqueeze(1), (2 * errors * weights).clamp_max(2 * clip.bound)


def _typical(norms: Tensor, times: float) -> float:
    """A bound: so many times the median."""
    return max(times * float(norms.median()), SMALLEST, LEAST)


def _close(found: Tensor, wanted: Tensor, allowed: Tensor, what: str) -> None:
    gap = (found.double() - wanted).abs()
    assert bool((gap <= allowed).all()), f"{what}: off by {(gap / allowed).max():.3g} times what rounding explains"
