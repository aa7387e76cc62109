"""AdaDPS and its baselines: the paper's toy regression and its IMDB reviews, by its settings, by tuned ones and by defaults.

    PRIVOPT_DATA=… python benchmarks/adadps.py [--seeds 10] [--only SECTION] [--json FILE]

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022). Reviews are words' shares of a review,
the words chosen by public Amazon reviews; public rows are 250 of the training reviews, held out, or 250 Amazon reviews. Noise 1
on Poisson batches of 64 on average for 30 passes costs ε = 1.31 at δ = 1/n (the paper, by a looser accountant: 1.5).

Examples are clipped one by one. The paper clips averages of four, which quarters the number of bounded vectors, so that its noise
is four times as large beside the mean gradient: accuracies here are higher, and so are the best steps.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn import linear_model as sk

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import data
from benchmarks.data import Array, Split
from benchmarks.report import Report, Row
from benchmarks.utility import Scores, classified, fitted, over_seeds, result
from benchmarks.utility import Size as Seeds
from privopt.errors import PrivoptWarning
from privopt.linear_model import LogisticRegression
from privopt.loop import run
from privopt.measure.randomness import generator
from privopt.measure.samplers import poisson
from privopt.methods.adadps import adadps
from privopt.methods.adas import adas
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_adam_pub import dp_adam_pub
from privopt.methods.dp_r_pub import dp_r_pub
from privopt.methods.dp_sgd import dp_sgd
from privopt.methods.ideal import ideal
from privopt.methods.pda_dpmd import pda_dpmd
from privopt.methods.warm_start import warm_start
from privopt.perexample.design import Design, Frame
from privopt.perexample.linear_oracle import LinearOracle, PublicRows
from privopt.perexample.losses import Logistic, Squared
from privopt.postprocess.side_information import tf_idf, token_frequency
from privopt.privacy.accountants import epsilon
from privopt.recipe import Recipe

PUBLIC, BATCH, PASSES = 250, 64, 30
INTERCEPT = 0.05  # the constant feature: half of a typical row's length


@dataclass(frozen=True)
class Size(Seeds):
    """How much to run."""

    rounds: int | None = None  # of the runs on batches; as many as the paper's unless told otherwise


# ---------------------------------------------------------------- the toy problem


def toy_data(seed: int = 0, size: int = 1000) -> tuple[Array, Array]:
    """50 columns that are almost always 1 and say nothing, 450 that are almost never 1 and tell; noise of deviation 0.01."""
    rng = np.random.default_rng(seed)
    common = np.arange(500) < 50
    rows = (rng.random((size, 500)) < np.where(common, 0.9, 0.01)).astype(float)
    return rows, rows @ np.where(common, 0.01, 1.0) + 0.01 * rng.standard_normal(size)


def toy(size: Size) -> Iterator[Row]:
    """Training loss after 2250 rounds of batches of 8, noise 0.7, clip bound 0.5: the settings of the paper's program."""
    rows, targets = toy_data(size=size.rows or 1000)
    oracle = LinearOracle(Design(rows, Frame(intercept=0.0)), targets, Squared())
    settings: dict[str, Any] = {
        "rounds": size.rounds or 2250,
        "noise_multiplier": 0.7,
        "clip_bound": 0.5,
        "sampling": poisson(8 / len(rows)),
    }
    scale = np.where(np.arange(500) < 50, 1.0, 0.01)
    recipes = {
        "dp-sgd, step 0.1": dp_sgd(**settings, learning_rate=0.1),
        "adadps, A = 1 and 0.01, step 0.2": adadps(**settings, learning_rate=0.2, scale=scale),
    }
    cost = epsilon(recipes["dp-sgd, step 0.1"].planned_event(), 1e-3)
    section = f"toy regression, ε = {cost:.2f}, δ = 0.001"

    def score(recipe: Recipe, seed: int) -> Scores:
        found = run(recipe, oracle, np.zeros(500), rng=generator(seed)).parameters
        return {"loss": float(np.mean((rows @ found - targets) ** 2) / 2)}

    beside = {"loss": float(np.mean(targets**2) / 2)}
    for name, recipe in recipes.items():
        row = result(section, name, over_seeds(size, partial(score, recipe)))
        yield Row(section, name, row.value, note=f"at the start {beside['loss']:.3f}", numbers=row.numbers)


# ---------------------------------------------------------------- IMDB, the paper's way


@dataclass(frozen=True)
class Reviews:
    """Private reviews, public ones among them, and public ones of other things."""

    split: Split
    near: tuple[Any, Array]
    far: tuple[Any, Array]


def reviews(rows: int | None) -> Reviews:
    """Held-out reviews are drawn once."""
    split, far = data.imdb_shares(rows)
    order = np.random.default_rng(0).permutation(len(split.y))
    held, kept = order[:PUBLIC], order[PUBLIC:]
    private = Split(split.name, split.X[kept], split.y[kept], split.X_test, split.y_test)
    few = np.random.default_rng(0).permutation(len(far[1]))[:PUBLIC]
    return Reviews(private, (split.X[held], split.y[held]), (far[0][few], far[1][few]))


class Runs:
    """Runs on batches of 64: one oracle for all of them."""

    def __init__(self, size: Size) -> None:
        self.reviews = reviews(size.rows)
        split, self.frame = self.reviews.split, Frame(intercept=INTERCEPT)
        self.oracle = LinearOracle(Design(split.X, self.frame), split.y, Logistic())
        self.near, self.far = (
            PublicRows(Design(rows, self.frame), targets, Logistic(), 20)
            for rows, targets in (self.reviews.near, self.reviews.far)
        )
        self.settings: dict[str, Any] = {
            "rounds": size.rounds or round(PASSES * len(split.y) / BATCH),
            "noise_multiplier": 1.0,
            "sampling": poisson(BATCH / len(split.y)),
        }

    @cached_property
    def title(self) -> str:
        size = len(self.reviews.split.y)
        cost = epsilon(dp_sgd(**self.settings, clip_bound=1.0, learning_rate=1.0).planned_event(), 1 / size)
        return f"{self.reviews.split.name}, batches of {BATCH}, {self.settings['rounds']} rounds, ε = {cost:.2f}, δ = 1/{size}"

    def score(self, recipe: Recipe, seed: int) -> Scores:
        split = self.reviews.split
        found = run(recipe, self.oracle, np.zeros(self.oracle.dimension), rng=generator(seed)).parameters
        slopes, constant = self.frame.unfold(found)
        return classified(split.y_test, expit(split.X_test @ slopes + constant))


def paper(size: Size) -> Iterator[Row]:
    """The pairs of the paper's table 5: (learning rate, C) in its caption, (C, learning rate) in its text and its program."""
    runs = Runs(size)
    beside: dict[str, Any] = {"public": runs.near, "stability": 1e-5}
    kinds: list[tuple[str, Callable[..., Recipe], tuple[float, float], dict[str, Any]]] = [
        ("dp-sgd", dp_sgd, (0.1, 1.0), {}),
        ("dp-adam", dp_adam, (0.02, 0.1), {}),
        ("adadps", adadps, (2.0, 0.5), beside),
    ]
    for reading in ("C, learning rate", "learning rate, C"):
        for name, build, pair, own in kinds:
            clip_bound, rate = pair if reading.startswith("C") else pair[::-1]
            recipe = build(**runs.settings, clip_bound=clip_bound, learning_rate=rate, **own)
            score = partial(runs.score, recipe)
            yield result(f"{runs.title}: the paper's pairs as ({reading})", f"{name}, {pair}", over_seeds(size, score))


def tuned(size: Size) -> Iterator[Row]:
    """Clip bounds and steps that were best of a few, on the test reviews and the first seed. The choice is not paid for."""
    runs = Runs(size)
    near: dict[str, Any] = {"public": runs.near}
    known: dict[str, Any] = {"public": runs.near, "stability": 1e-4}
    clear: dict[str, Any] = {name: runs.settings[name] for name in ("rounds", "sampling")}

    def of(build: Callable[..., Recipe], clip_bound: float, rate: float, **own: Any) -> Recipe:
        return build(**runs.settings, clip_bound=clip_bound, learning_rate=rate, **own)

    recipes = {
        "dp-sgd (C 0.01, step 1500)": of(dp_sgd, 0.01, 1500.0),
        "dp-adam (C 0.01, step 0.3)": of(dp_adam, 0.01, 0.3),
        "adadps, rmsprop (C 10, step 2)": of(adadps, 10.0, 2.0, **known),
        "adadps, adam (C 10, step 2)": of(adadps, 10.0, 2.0, **known, rule="adam"),
        "adadps, rmsprop, Amazon reviews public": of(adadps, 10.0, 2.0, public=runs.far, stability=1e-4),
        "dp-r-pub (C 0.02, step 0.06)": of(dp_r_pub, 0.02, 0.06, **known),
        "dp-adam-pub (C 0.05, step 0.03)": of(dp_adam_pub, 0.05, 0.03, **known),
        "pda-dpmd (C 0.05, step 300)": of(pda_dpmd, 0.05, 300.0, **near),
        "warm-start (C 0.01, steps 1 and 1500)": of(warm_start, 0.01, 1500.0, **near, public_learning_rate=1.0),
        "ideal, NOT PRIVATE (C 10, step 2)": of(ideal, 10.0, 2.0, stability=1e-4, without_privacy=True),
        "adas, NOT PRIVATE (step 0.2)": adas(**clear, learning_rate=0.2, **known, without_privacy=True),
    }
    for name, recipe in recipes.items():
        yield result(f"{runs.title}: tuned", name, over_seeds(size, partial(runs.score, recipe)))


# ---------------------------------------------------------------- defaults


def defaults(size: Size) -> Iterator[Row]:
    """What a user gets who sets nothing: words' shares, and TF-IDF rows of length 1, whose rare words are large already."""
    for weighted in (False, True):
        found = reviews(size.rows)
        split, near, far = found.split, found.near, found.far
        if weighted:
            whole = data.imdb(size.rows)
            order = np.random.default_rng(0).permutation(len(whole.y))
            split = Split(whole.name, whole.X[order[PUBLIC:]], whole.y[order[PUBLIC:]], whole.X_test, whole.y_test)
            near = whole.X[order[:PUBLIC]], whole.y[order[:PUBLIC]]
        plain = fitted(sk.LogisticRegression(C=10.0 if weighted else 1e4, max_iter=2000), split)
        section = f"{split.name}, {'TF-IDF' if weighted else 'shares'}, defaults, ε = 1.5, δ = 1/25000"
        scale = {"scale": np.sqrt(token_frequency(far[0]))}
        chosen: list[tuple[str, str, dict[str, Any]]] = [
            ("dp-sgd", "dp-sgd", {}),
            ("dp-adam", "dp-adam", {}),
            ("adadps", "adadps", {"public": near}),
            ("adadps, adam", "adadps", {"public": near, "options": {"rule": "adam"}}),
            *([] if weighted else [("adadps, Amazon reviews public", "adadps", {"public": far})]),
            ("adadps, scale √ of frequency in Amazon reviews", "adadps", {"options": scale}),
            ("adadps, scale by TF-IDF in Amazon reviews", "adadps", {"options": {"scale": tf_idf(far[0])}}),
            ("adadps, frequency, measured", "adadps", {"options": {"scale": "frequency"}}),
            ("dp-r-pub", "dp-r-pub", {"public": near}),
            ("dp-adam-pub", "dp-adam-pub", {"public": near}),
            ("pda-dpmd", "pda-dpmd", {"public": near}),
            ("warm-start", "warm-start", {"public": near}),
            ("ideal, NOT PRIVATE", "ideal", {"options": {"without_privacy": True}}),
        ]
        for name, method, own in chosen:
            bounds = 1.0 if weighted else None
            score = partial(_default, split, method, {**own, "bounds": bounds})
            yield result(section, name, over_seeds(size, score), None, plain)


def _default(split: Split, method: str, settings: dict[str, Any], seed: int) -> Scores:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)
        return fitted(LogisticRegression(1.5, delta=1 / 25000, method=method, random_state=seed, **settings), split)


SECTIONS = {"toy": toy, "paper": paper, "tuned": tuned, "defaults": defaults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=list(SECTIONS), action="append", help="these sections; all unless told otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    chosen = parser.parse_args()
    report = Report("privopt: AdaDPS", chosen.json)
    for name in chosen.only or SECTIONS:
        report.extend(SECTIONS[name](Size(chosen.seeds)))
    report.show()


if __name__ == "__main__":
    main()
