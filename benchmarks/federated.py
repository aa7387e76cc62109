"""Federated AdaDPS, DP-FedAvg and DP-FedAdam on Stack Exchange tags with their natural users, at the same user-level ε.

    python benchmarks/federated.py [--json benchmarks/results/federated.json] [--seeds 5]

Posts are bags of words (log counts, rows of length 1), the target is the commonest of 50 tags, and users are the posts'
authors. AdaDPS divides local steps by how often words occur in a public corpus (IMDB reviews). Two federations: the paper's
size (400 users, 20 in a round, 100 rounds, at its ε = 34) and all users of the data at ε = 8, everybody in every round. Each
method's server rate is the best of a grid on a seed of its own, as papers do it; it is chosen on the test users, for all
methods alike.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import folder
from privopt.federated.nodes import NodesInProcess, Reply, Request
from privopt.federated.training import FederatedSettings, ModelFacts, train_federation
from privopt.methods.problem import SideFacts, multinomial_facts
from privopt.perexample.losses import Multinomial
from privopt.perexample.user_vectors import LinearUsers, group_rows
from privopt.postprocess.side_information import token_frequency
from privopt.privacy.budget import Budget, default_delta
from privopt.training.session import Session

METHODS = ("dp-fedavg", "dp-fedadam", "fed-adadps")
TAGS, INTERCEPT = 50, 0.5
GRID = (1.0, 4.0)  # × the default server rate, which is the first


@dataclass(frozen=True)
class Data:
    """Rows of length 1 and tags; the rows of each user of the training part; the public scale."""

    train: sp.csr_matrix
    tags: Any
    groups: list[Any]
    test: sp.csr_matrix
    test_tags: Any
    scale: Any
    scaled_norm: float  # of a typical public row divided by it


@dataclass(frozen=True)
class Federation:
    """How large it is, and what it may spend."""

    name: str
    users: int
    cohort: int
    rounds: int
    epsilon: float
    delta: float


def load(data: Path) -> Data:
    """The data set, and the frequency of its words in the public corpus."""
    archive = np.load(data / "stackexchange_bow.npz")
    rows = _unit_rows(_csr(archive))
    labelled, test = archive["y50"] >= 0, archive["test_user_mask"]
    chosen = labelled & ~test
    groups = group_rows(archive["user"][chosen])
    groups.sort(key=len, reverse=True)  # the most active first: the smaller federation is theirs
    held = labelled & test
    tags = archive["y50"].astype(float)
    return Data(rows[chosen], tags[chosen], groups, rows[held], tags[held], *_public_scale(data))


def _unit_rows(counts: sp.csr_matrix) -> sp.csr_matrix:
    rows = counts.log1p()
    return sp.csr_matrix(rows.multiply(1 / np.maximum(sp.linalg.norm(rows, axis=1), 1e-9)[:, None]))


def _csr(archive: Mapping[str, Any]) -> sp.csr_matrix:
    parts = (archive["data"].astype(float), archive["indices"].astype(np.int32), archive["indptr"])
    return sp.csr_matrix(parts, shape=tuple(archive["shape"]))


def _public_scale(data: Path) -> tuple[Any, float]:
    """√ of the share of public reviews that have each word: the typical size of its coefficient's gradient.

    And the length of a typical review whose words are divided by it. Nothing here is read from the users' rows.
    """
    import gzip

    def words(name: str) -> list[str]:
        with gzip.open(data / name, "rt", encoding="utf8") as file:
            return [line.rstrip("\n").split("\t")[0] for line in file]

    reviews = _csr(np.load(data / "imdb_train_bow.npz"))
    frequency = token_frequency(reviews)
    scaled_norm = float(np.sqrt(np.mean(_unit_rows(reviews).power(2) @ (1 / frequency))))
    known = dict(zip(words("imdb_vocab.txt.gz"), frequency, strict=False))
    least = float(frequency.min())
    return np.sqrt(np.array([known.get(word, least) for word in words("stackexchange_vocab.txt.gz")])), scaled_norm


class Watched:
    """Nodes in this process that note how good the iterates are that they are sent: iterates are public."""

    def __init__(self, data: Data, users: int, every: int) -> None:
        groups = data.groups[:users]
        nodes = [LinearUsers(data.train, data.tags, groups[part::2], Multinomial(TAGS), intercept=INTERCEPT) for part in (0, 1)]
        self._nodes, self._data, self._every = NodesInProcess(nodes), data, every
        self.sizes, self.curve, self._asked = self._nodes.sizes, list[tuple[int, float]](), 0

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """Pass them on."""
        if self._asked % self._every == 0 and requests:
            self.curve.append((self._asked, accuracy(self._data, next(iter(requests.values())).parameters)))
        self._asked += 1
        return self._nodes.ask(requests)


def accuracy(data: Data, parameters: Any) -> float:
    """On test users."""
    coefficients = parameters.reshape(TAGS, -1)
    scores = data.test @ coefficients[:, :-1].T + INTERCEPT * coefficients[:, -1]
    return float(np.mean(scores.argmax(axis=1) == data.test_tags))


def train(data: Data, federation: Federation, method: str, seed: int, rate: float | None) -> dict[str, Any]:
    """One run: its test accuracy, its curve and what it cost."""
    width = data.train.shape[1] + 1
    side, options = None, dict[str, Any]()
    if method == "fed-adadps":
        scale = np.append(data.scale, 1.0)
        side, options = (
            SideFacts(None, np.tile(scale, TAGS), math.hypot(data.scaled_norm, INTERCEPT), 0.0),
            {"scale": "frequency in a public corpus"},
        )
    facts = ModelFacts(multinomial_facts(TAGS), width, TAGS * width, math.hypot(1.0, INTERCEPT), side)
    nodes = Watched(data, federation.users, max(1, federation.rounds // 20))
    budget = Budget(federation.epsilon, federation.delta, unit="user")
    session = Session(budget, federation.users, seed=seed)
    settings = FederatedSettings(method, federation.rounds, federation.cohort, None, rate, options)
    began = time.perf_counter()
    released, statement = train_federation(nodes, np.zeros(TAGS * width), facts, settings, session)
    curve = [*nodes.curve, (federation.rounds, accuracy(data, released.parameters))]
    return {
        "accuracy": curve[-1][1],
        "curve": curve,
        "epsilon": statement.epsilon,
        "learning rate": released.settings["learning rate"],
        "noise multiplier": released.noise_multiplier,
        "seconds": time.perf_counter() - began,
    }


def _best(tried: dict[float, Future[dict[str, Any]]]) -> float:
    """The factor whose run is the most accurate."""
    return max(tried, key=lambda factor: float(tried[factor].result()["accuracy"]))


def study(data: Data, federation: Federation, seeds: int) -> dict[str, Any]:
    """All methods, each with the rate that is best of the grid on seed 100."""
    found: dict[str, Any] = {"federation": vars(federation) | {}, "methods": {}}
    with ProcessPoolExecutor(os.cpu_count()) as pool:

        def begin(method: str, seed: int, rate: float | None) -> Future[dict[str, Any]]:
            return pool.submit(train, data, federation, method, seed, rate)

        firsts = {method: begin(method, 100, None) for method in METHODS}
        rates = {method: first.result()["learning rate"] for method, first in firsts.items()}
        others = {method: {factor: begin(method, 100, factor * rates[method]) for factor in GRID[1:]} for method in METHODS}
        best = {method: _best({GRID[0]: firsts[method]} | others[method]) for method in METHODS}
        started = {method: [begin(method, seed, best[method] * rates[method]) for seed in range(seeds)] for method in METHODS}
    for method in METHODS:
        runs = [run.result() for run in started[method]]
        scores = [run["accuracy"] for run in runs]
        found["methods"][method] = {
            "learning rate": best[method] * rates[method],
            "times the default rate": best[method],
            "accuracy": [float(np.mean(scores)), float(np.std(scores, ddof=1)) if seeds > 1 else 0.0],
            "curve": [
                [place, float(np.mean([run["curve"][at][1] for run in runs]))] for at, (place, _) in enumerate(runs[0]["curve"])
            ],
            "epsilon": runs[0]["epsilon"],
            "noise multiplier": runs[0]["noise multiplier"],
            "seconds": float(np.median([run["seconds"] for run in runs])),
        }
        mean, spread = found["methods"][method]["accuracy"]
        print(f"{federation.name}: {method}: {mean:.4f} ± {spread:.4f} at ε = {runs[0]['epsilon']:.3g}", flush=True)
    return found


def federations(users: int) -> list[Federation]:
    """The paper's, at its ε; and everybody at ε = 8."""
    return [
        Federation("400 users, 20 a round", 400, 20, 100, 34.0, 1e-3),
        Federation(f"all {users} users, all in each round", users, users, 30, 8.0, default_delta(users)),
    ]


def main() -> None:
    """Run both studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    place = folder()
    if place is None:
        raise SystemExit("PRIVOPT_DATA has to name the folder of the data sets: this study needs real users.")
    data = load(place)
    majority = float(np.mean(data.test_tags == np.bincount(data.tags.astype(int)).argmax()))
    results: dict[str, Any] = {
        "command": f"python benchmarks/federated.py --seeds {arguments.seeds}",
        "data": f"{len(data.tags)} posts of {len(data.groups)} users; {len(data.test_tags)} posts of other users for tests",
        "majority": majority,
        "studies": [],
    }
    for federation in federations(len(data.groups)):
        results["studies"].append(study(data, federation, arguments.seeds))
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
