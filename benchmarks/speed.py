"""Speed: private steps beside non-private ones and beside Opacus, other methods, networks, fits, imports, memory, durability.

    python benchmarks/speed.py [--quick] [--json FILE]

Ratios are of blocks that alternate within one process; numbers are medians with their interquartile range.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import data, dpsrm, peers, smooth_erm
from benchmarks.data import Array, Split
from benchmarks.networks import memory_of_networks, networks
from benchmarks.report import Report, Row, interleaved, middle, spread
from privopt.checkpoint import Checkpoint
from privopt.linear_model import LogisticRegression
from privopt.loop import run
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.adadps import adadps
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Rows
from privopt.perexample.linear_oracle import LinearGrads, LinearOracle, PublicRows
from privopt.perexample.losses import Logistic
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe


@dataclass(frozen=True)
class Size:
    """How long to measure."""

    blocks: int
    steps: int
    fits: int
    imports: int
    rows: int | None = None  # of the data sets; all of them unless told otherwise


FULL = Size(blocks=21, steps=20, fits=5, imports=10)
QUICK = Size(blocks=5, steps=5, fits=3, imports=3)
LOADED = ", batches loaded"


# ---------------------------------------------------------------- steps


def full_batch_step(size: Size) -> Iterator[Row]:
    """What clipping and noise add to a step on all rows, through the whole loop. The other side has no loop around it."""
    for split in (data.a9a(size.rows).dense(), data.a9a(size.rows), data.imdb(size.rows)):
        design, oracle = _model(split)
        recipe = dp_adam(rounds=size.steps, noise_multiplier=10.0, clip_bound=0.5, learning_rate=0.01)
        private, other = partial(_private, recipe, oracle), partial(_not_private, recipe, design, split.y)
        seconds = interleaved({"private": private, "not": other}, size.blocks)
        ratio = seconds["private"] / seconds["not"]
        required = split.storage == "dense" or split.name.startswith("imdb")
        yield Row(
            "full-batch step: private / non-private",
            f"{split.name} {split.storage}",
            spread(ratio, " ×"),
            "≤ 1.1 ×" if required else "",
            middle(ratio)[0] <= 1.1 if required else None,
            f"{spread(seconds['private'], ' ms', 1e3)} private",
            {"ratio": middle(ratio), **{name: middle(values) for name, values in seconds.items()}},
        )


def small_batch_step(size: Size) -> Iterator[Row]:
    """DP-SGD on Poisson batches beside Opacus, over an epoch and on batches that both have drawn and loaded before."""
    sparse = data.a9a(size.rows)
    rows = len(sparse.y)
    splits = {"CSR": sparse, "dense": sparse.dense()}
    for batch in (64, 256):
        steps = max(1, round(rows / batch))  # an epoch
        recipe = partial(dp_sgd, rounds=steps, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
        whole, loaded = recipe(sampling=poisson(batch / rows)), recipe()
        contenders: dict[str, Callable[[], int]] = {}
        for storage, split in splits.items():
            contenders[storage] = partial(_private, whole, _model(split)[1])
            contenders[storage + LOADED] = partial(_private, loaded, _Loaded(split, batch, steps))
        if peers.installed():
            peer = peers.OpacusLogistic(splits["dense"].X, sparse.y, batch_size=batch, learning_rate=0.1, clip_bound=1.0)
            ready = peer.batches(steps)
            for threads, setting in ((None, ""), (1, ", one thread")):
                contenders[f"Opacus{setting}"] = partial(peer.with_threads, threads, partial(peer.epoch, steps))
                contenders[f"Opacus{setting}{LOADED}"] = partial(peer.with_threads, threads, partial(peer.steps, ready))
        seconds = interleaved(contenders, max(2, size.blocks // 2))
        yield from _beside_opacus(f"DP-SGD step, {sparse.name}, expected batch {batch}", seconds)


def _beside_opacus(section: str, seconds: dict[str, Array]) -> Iterator[Row]:
    """Beside Opacus at its best: on busy cores its threads wait for each other, which says nothing about either library."""
    for name in (name for name in seconds if not name.startswith("Opacus")):
        rivals = [rival for rival in seconds if rival.startswith("Opacus") and rival.endswith(LOADED) == name.endswith(LOADED)]
        cost, numbers = spread(seconds[name], " µs", 1e6), {"seconds": middle(seconds[name])}
        if not rivals:
            yield Row(section, name, cost, "≥ 10 × faster", None, "Opacus is not installed", numbers)
            continue
        best = min(rivals, key=lambda rival: middle(seconds[rival])[0])
        ratio = seconds[best] / seconds[name]
        numbers |= {"ratio": middle(ratio), **{rival: middle(seconds[rival]) for rival in rivals}}
        note = f"{cost}; {best.removesuffix(LOADED)} {spread(seconds[best], ' µs', 1e6)}"
        yield Row(section, name, f"{spread(ratio, ' ×')} faster", "≥ 10 × faster", middle(ratio)[0] >= 10, note, numbers)


class _Loaded:
    """An oracle that is asked for all of its rows and answers for the next of some batches, drawn and loaded before."""

    def __init__(self, split: Split, batch: int, count: int) -> None:
        rng, rows = generator(0), len(split.y)
        drawn = [poisson(batch / rows).draw(rows, round_, rng) for round_ in range(count)]
        self._oracles = itertools.cycle(
            [LinearOracle(Design(split.X[rows], Frame()), split.y[rows], Logistic()) for rows in drawn]
        )
        self.size, self.dimension = batch, split.X.shape[1] + 1

    def __call__(self, parameters: Array, rows: Rows) -> LinearGrads:
        return next(self._oracles)(parameters, None)


def _model(split: Split) -> tuple[Design, LinearOracle]:
    design = Design(split.X, Frame(intercept=1.0))
    return design, LinearOracle(design, split.y, Logistic())


def _private(recipe: Recipe, oracle: LinearOracle | _Loaded) -> int:
    return run(recipe, oracle, np.zeros(oracle.dimension)).rounds


def _not_private(recipe: Recipe, design: Design, targets: Array) -> int:
    descended(recipe, design, targets)
    return recipe.rounds


def descended(recipe: Recipe, design: Design, targets: Array) -> Array:
    """The same updates by the mean gradient itself, as short as they can be written."""
    parameters, loss = np.zeros(design.width), Logistic()
    memory = recipe.update.start(parameters)
    for round_ in range(recipe.rounds):
        batch = design.take(None)
        mean = batch.weighted_sum(loss.residuals(batch.scores(parameters), targets)) / len(design)
        step, memory = recipe.update.step(mean, memory, round_)
        parameters = step.taken(parameters)
    return parameters


# ---------------------------------------------------------------- other methods


def methods(size: Size) -> Iterator[Row]:
    """AdaDPS beside DP-SGD, five passes of DP-SRM, and output perturbation from beginning to end."""
    yield from _adadps_step(size)
    a9a = data.a9a(size.rows)
    oracle = dpsrm.Problem(a9a).train
    for batch in dpsrm.BATCHES:
        rounds = max(2, round(5 * len(a9a.y) / batch))
        recipe = dpsrm._srm(rounds, batch, len(a9a.y), step=0.05, noise=1.0)
        seconds = [_timed(partial(_private, recipe, oracle)) for _ in range(size.fits)]
        yield _limited(f"DP-SRM, {a9a.name}, five passes in batches of {batch}", seconds, 0.5)
    tables = {table.name: table for table in data.whole_tables()}
    adult = smooth_erm.task(tables.get("ADULT", next(iter(tables.values()))))
    fit = partial(LogisticRegression(1.0, delta=1e-5, method="output-perturbation", bounds=1.0).fit, adult.X, adult.y)
    yield _limited(f"output perturbation, {adult.name}, whole fit", [_timed(fit) for _ in range(size.fits)], 1.0)


def _adadps_step(size: Size) -> Iterator[Row]:
    for split in (data.imdb(size.rows), data.a9a(size.rows), data.a9a(size.rows).dense()):
        _, oracle = _model(split)
        public = PublicRows(Design(split.X_test[:250], Frame(intercept=1.0)), split.y_test[:250], Logistic(), 20)
        settings: dict[str, Any] = {
            "rounds": 10 * size.steps, "noise_multiplier": 1.0, "clip_bound": 1.0, "learning_rate": 0.1,
            "sampling": poisson(64 / len(split.y)),
        }  # fmt: skip
        recipes = {"dp-sgd": dp_sgd(**settings), "adadps": adadps(**settings, public=public)}
        seconds = interleaved({name: partial(_private, recipe, oracle) for name, recipe in recipes.items()}, size.blocks)
        ratio = seconds["adadps"] / seconds["dp-sgd"]
        yield Row(
            "methods",
            f"AdaDPS step / DP-SGD step, {split.name} {split.storage}, batches of 64",
            spread(ratio, " ×"),
            "≤ 1.6 ×",
            middle(ratio)[0] <= 1.6,
            f"{spread(seconds['adadps'], ' µs', 1e6)}",
            {"ratio": middle(ratio)},
        )


def _limited(name: str, seconds: list[float], limit: float) -> Row:
    found = middle(seconds)
    return Row("methods", name, spread(seconds, " s"), f"< {limit} s", found[0] < limit, "", {"seconds": found})


# ---------------------------------------------------------------- fits, imports, memory


def whole_fit(size: Size) -> Iterator[Row]:
    """`LogisticRegression(epsilon=1.0).fit` from beginning to end: scales, calibration, training, statement."""
    sparse = data.a9a(size.rows)
    dense = sparse.dense()
    for split, bounds in ((sparse, None), (sparse, np.sqrt(14.0)), (dense, None), (dense, (0.0, 1.0))):
        fit = partial(LogisticRegression(epsilon=1.0, bounds=bounds).fit, split.X, split.y)
        seconds = [_timed(fit) for _ in range(size.fits)]
        name, found = f"{split.name} {split.storage}, {'nothing' if bounds is None else 'bounds'} declared", middle(seconds)
        yield Row(
            "LogisticRegression(epsilon=1.0).fit", name, spread(seconds, " s"), "< 2 s", found[0] < 2, "", {"seconds": found}
        )


def _timed(task: Callable[[], object]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


IMPORTS = ("import privopt", "import privopt.methods, privopt.loop", "from privopt.linear_model import LogisticRegression")


def imports(size: Size) -> Iterator[Row]:
    """`import privopt` in a fresh interpreter, beside an interpreter that imports nothing, and what it loads."""
    heavy = "print([name for name in ('torch', 'sklearn') if name in __import__('sys').modules])"
    for statement in IMPORTS:
        seconds = interleaved({"import": partial(_python, statement), "bare": partial(_python, "pass")}, size.imports)
        order = [sys.executable, "-c", f"{statement}\n{heavy}"]
        loaded = subprocess.run(order, capture_output=True, text=True, check=True).stdout.strip()
        required = statement == "import privopt"
        yield Row(
            "import",
            statement,
            spread(seconds["import"], " s"),
            "< 0.5 s, loads neither" if required else "",
            middle(seconds["import"])[0] < 0.5 and loaded == "[]" if required else None,
            f"loads {loaded} of torch, sklearn; a bare interpreter takes {spread(seconds['bare'], ' s')}",
            {name: middle(values) for name, values in seconds.items()},
        )


def _python(code: str) -> int:
    subprocess.run([sys.executable, "-c", code], check=True)
    return 1


def memory(size: Size) -> Iterator[Row]:
    """The most memory that a fit takes beyond its data. Linux only."""
    if not Path("/proc/self/clear_refs").exists():
        return
    rows = 200_000 if size is FULL else 20_000
    for kind, columns, entries, declared in (("dense", 100, 100, "no"), ("dense", 100, 100, "yes"), ("CSR", 10_000, 50, "no")):
        order = [
            sys.executable,
            str(Path(__file__).with_name("memory.py")),
            kind,
            str(rows),
            str(columns),
            str(entries),
            declared,
        ]
        extra = float(subprocess.run(order, capture_output=True, text=True, check=True).stdout)
        held = rows * entries * (8 if kind == "dense" else 12)
        yield Row(
            "peak memory of a fit beyond its data",
            f"{kind} {rows} × {columns}, {'bounds' if declared == 'yes' else 'nothing'} declared",
            f"{extra / 1e6:.1f} MB = {extra / 8 / rows:.1f} vectors of {rows}",
            note=f"{extra / held:.1%} of the data's {held / 1e6:.0f} MB",
            numbers={"bytes": extra, "vectors": extra / 8 / rows},
        )


# ---------------------------------------------------------------- durability


def durability(size: Size) -> Iterator[Row]:
    """What a ledger and checkpoints on the disk cost a run, by the clock and by the time spent waiting for them."""
    for split in (data.a9a(size.rows), data.imdb(size.rows)):
        _, oracle = _model(split)
        recipe = dp_adam(rounds=10 * size.steps, noise_multiplier=10.0, clip_bound=0.5, learning_rate=0.01)
        waits: list[float] = []
        durable, other = partial(_durable, recipe, oracle, waits), partial(_private, recipe, oracle)
        seconds = interleaved({"durable": durable, "in memory": other}, size.fits)
        waited = np.array(waits[1:]) / (seconds["durable"] * recipe.rounds)
        extra = seconds["durable"] / seconds["in memory"] - 1
        section = f"durability: ledger and checkpoints, {split.name}, {recipe.rounds} rounds"
        numbers = {"waited": middle(waited), "slower": middle(extra), "seconds": middle(seconds["durable"] * recipe.rounds)}
        note = f"of {spread(seconds['durable'] * recipe.rounds, ' s')}"
        yield Row(section, "waited for the disk", spread(waited, " %", 100), "< 1 %", middle(waited)[0] < 0.01, note, numbers)
        yield Row(section, "slower than in memory", spread(extra, " %", 100), note="by the clock: noisier than the waits")


def _durable(recipe: Recipe, oracle: LinearOracle, waits: list[float]) -> int:
    """A run as `privopt train` makes it; the seconds spent in `pay` and `save` are added to `waits`."""
    waited = 0.0

    def clocked(task: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any, **named: Any) -> None:
            nonlocal waited
            waited += _timed(partial(task, *arguments, **named))

        return timed

    with tempfile.TemporaryDirectory() as place, Ledger(path=Path(place) / "ledger.jsonl") as ledger:
        checkpoint = Checkpoint(Path(place) / "checkpoint", "benchmark")
        name, rng = checkpoint.begin(ledger.run().name, generator())
        spending = ledger.run(name)
        setattr(spending, "pay", clocked(spending.pay))  # noqa: B010  # a method of this one run
        setattr(checkpoint, "save", clocked(checkpoint.save))  # noqa: B010
        rounds = run(recipe, oracle, np.zeros(oracle.dimension), spending=spending, rng=rng, checkpoint=checkpoint).rounds
    waits.append(waited)
    return rounds


SECTIONS: dict[str, Callable[[Size], Iterator[Row]]] = {
    "full-batch": full_batch_step,
    "small-batch": small_batch_step,
    "methods": methods,
    "fit": whole_fit,
    "import": imports,
    "durability": durability,
    "networks": lambda size: networks(size.blocks),
    "memory": memory,
    "memory of networks": lambda size: memory_of_networks(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute, and rougher")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--only", choices=list(SECTIONS), action="append", help="these sections; all unless told otherwise")
    chosen = parser.parse_args()
    report = Report("privopt: speed", chosen.json)
    for name in chosen.only or SECTIONS:
        report.extend(SECTIONS[name](QUICK if chosen.quick else FULL))
    report.show()


if __name__ == "__main__":
    main()
