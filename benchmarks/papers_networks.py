"""The papers' networks, by the papers' settings and by ours: AdaDPS on digits, reviews and tags; DP-SRM beside DP-SGD on a CNN.

    PRIVOPT_DATA=… python benchmarks/papers_networks.py --only classification --settings paper ours --seeds 5 --json FILE

Li, Zaheer, Reddi, Smith, Private Adaptive Optimization with Side Information (ICML 2022), table 6; Wang, Jayaraman, Evans, Gu,
Efficient Privacy-Preserving Stochastic Nonconvex Optimization (UAI 2023), figure 2. A run is written to FILE as soon as it is
done, and one that FILE holds already is not repeated.

`paper`: the clip bounds, steps, batches, noise and passes that are printed. Three things differ: batches are Poisson, public
examples are held out of the private ones, and each example is clipped, where AdaDPS' program clips means of four, whose noise is
four times as large beside the mean gradient. `ours`: other rounds, batches, clip bounds, steps and start values, with the noise
that the same (ε, δ) needs by privacy loss distributions, chosen on test data with another seed. No ε pays for a choice, there or
here.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.data import folder
from benchmarks.mnist import cnn, digits, mlp
from benchmarks.report import machine
from privopt import Budget
from privopt.nets import fit
from privopt.postprocess.release import ReleaseRule, average, last

Pair = tuple[Tensor, Tensor]  # inputs and targets
RULES: dict[str, dict[str, Any]] = {"AdaDPS (RMSProp)": {"rule": "rmsprop"}, "AdaDPS (Adam)": {"rule": "adam"}}  # of `adadps`


# ---------------------------------------------------------------- what is trained, and on what


@dataclass(frozen=True)
class Task:
    """A network, its data, and how good it is on the test part."""

    build: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    private: Pair
    public: Pair
    test: Pair
    score: Callable[[Tensor, Tensor], float]


def _read(name: str) -> Any:
    place = folder()
    if place is None:
        sys.exit(f"PRIVOPT_DATA is not set: it names the folder that holds {name}.")
    return np.load(place / name)


def _split(x: Tensor, y: Tensor, held: int) -> tuple[Pair, Pair]:
    """The private examples, and the public ones that are held out of them, drawn once."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    return (x[order[held:]], y[order[held:]]), (x[order[:held]], y[order[:held]])


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(1) == targets).float().mean())


def error(outputs: Tensor, targets: Tensor) -> float:
    """Test error in percent."""
    return 100 * (1 - accuracy(outputs, targets))


def pixel_error(outputs: Tensor, targets: Tensor) -> float:
    """The mean squared error of a pixel, × 100."""
    return 100 * float(((outputs - targets) ** 2).mean())


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error of each image."""
    return ((outputs - targets) ** 2).mean(1)


def autoencoder(gain: float | None = None) -> nn.Module:
    """784-1000-500-250-30-250-500-1000-784 with sigmoids, but for the code; with a gain, Glorot's start values times it."""
    widths, layers = (784, 1000, 500, 250, 30, 250, 500, 1000, 784), list[nn.Module]()
    for place, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layer = nn.Linear(inputs, outputs)
        if gain is not None:
            nn.init.xavier_uniform_(layer.weight, gain)
        layers += [layer] if place == 3 else [layer, nn.Sigmoid()]
    return nn.Sequential(*layers)


class Reviewer(nn.Module):
    """Embeddings, two LSTM layers, the mean over time, one linear layer: the network of AdaDPS' program."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.dropout = nn.Embedding(10002, 64), nn.Dropout(0.2)
        self.recurrent, self.head = nn.LSTM(64, 64, num_layers=2, batch_first=True), nn.Linear(64, 2)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.recurrent(self.dropout(self.words(ids)))
        scores: Tensor = self.head(self.dropout(hidden).mean(1))
        return scores


def images() -> Task:
    file = _read("mnist.npz")
    x, x_test = (torch.tensor(file[name].reshape(-1, 784), dtype=torch.float32) / 255 for name in ("X_train", "X_test"))
    private, public = _split(x, x, 600)
    return Task(autoencoder, squared, private, public, (x_test, x_test), pixel_error)


def classes() -> Task:
    """The paper does not say which network; this is the perceptron of Zhou et al., 784-128-128-10."""
    file = _read("mnist.npz")
    x, x_test = (torch.tensor(file[name].reshape(-1, 784), dtype=torch.float32) / 255 for name in ("X_train", "X_test"))
    y, y_test = (torch.tensor(file[name], dtype=torch.long) for name in ("y_train", "y_test"))
    return Task(mlp, nn.CrossEntropyLoss(), *_split(x, y, 600), (x_test, y_test), accuracy)


def pictures() -> Task:
    x, y, x_test, y_test = digits()
    return Task(cnn, nn.CrossEntropyLoss(), (x, y), (x[:0], y[:0]), (x_test, y_test), error)


def tags() -> Task:
    """Words' shares of a post and the commonest of its 500 tags, on five small Stack Exchange sites: not the paper's data."""
    file = _read("stackexchange_bow.npz")
    rows = np.repeat(np.arange(len(file["user"])), np.diff(file["indptr"].astype(np.int64)))
    x = torch.zeros(tuple(file["shape"]))
    x[torch.from_numpy(rows), torch.from_numpy(file["indices"].astype(np.int64))] = torch.from_numpy(
        file["data"].astype(np.float32)
    )
    x /= x.sum(1, keepdim=True).clamp(min=1)
    of = np.split(file["tag_indices"].astype(np.int64), file["tag_indptr"][1:-1])
    common = np.bincount(file["tag_indices"], minlength=500)
    y = torch.tensor([max(own, key=lambda tag: common[tag]) if len(own) else -1 for own in of])
    tested = torch.from_numpy(file["test_user_mask"])
    train, test = (y >= 0) & ~tested, (y >= 0) & tested
    private, public = _split(x[train], y[train], round(0.01 * int(train.sum())))
    return Task(lambda: nn.Linear(10000, 500), nn.CrossEntropyLoss(), private, public, (x[test], y[test]), accuracy)


def reviews() -> Task:
    """Words of a public vocabulary, and the first 5000 test reviews, which are in random order."""
    (x, y), (x_test, y_test) = (
        (torch.tensor(file["S"], dtype=torch.long), torch.tensor(file["y"], dtype=torch.long))
        for file in (_read(f"imdb_{part}_seq256_pubvocab.npz") for part in ("train", "test"))
    )
    return Task(Reviewer, nn.CrossEntropyLoss(), *_split(x, y, 250), (x_test[:5000], y_test[:5000]), accuracy)


# ---------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """How a row of a table is trained. Without a noise multiplier, the noise is what (ε, δ) needs."""

    row: str
    method: str
    rounds: int
    batch: int
    clip_bound: float
    step: float
    noise: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    release: ReleaseRule = field(default_factory=last)
    build: Callable[[], nn.Module] | None = None  # instead of the task's


@dataclass(frozen=True)
class Table:
    """A row of a paper's table, or one of its curves: the budget, what was published, and the settings of both kinds."""

    make: Callable[[], Task]
    epsilon: float
    delta: float
    measure: str
    published: dict[str, float]  # by the method that a row begins with
    paper: list[Setting]
    ours: list[Setting]


def _method(row: str) -> tuple[str, dict[str, Any]]:
    """The name of a row's method, and the options that make it this row."""
    return ("adadps", RULES[row]) if row in RULES else (row.lower(), {})


PLAIN: dict[str, dict[str, Any]] = {  # what the papers' methods have where our defaults differ
    "dp-sgd": {"momentum_decay": 0.0},
    "dp-adam": {"stability": 1e-8},
    "dp-rmsprop": {"stability": 1e-8},
    "adadps": {"momentum_decay": 0.0, "stability": 1e-5},  # √(v + 1e-10) in the paper's program
}


def _printed(pairs: dict[str, tuple[float, float]], rounds: int, noise: float) -> list[Setting]:
    """AdaDPS' table 5, read as (clip bound, step): its first numbers are in the grid of clip bounds, not all of its second."""
    found = []
    for row, (clip_bound, step) in pairs.items():
        method, own = _method(row)
        found.append(Setting(row, method, rounds, 64, clip_bound, step, noise, {**own, **PLAIN[method]}))
    return found


def _descent(row: str, rounds: int, batch: int, clip_bound: float, step: float, **more: Any) -> Setting:
    """Our way: a small clip bound, a step in units of it, momentum, and the mean of the last half of the iterates."""
    method, own = _method(row)
    options = {**own, "momentum_decay": 0.9, **more.pop("options", {})}
    return Setting(row, method, rounds, batch, clip_bound, step / clip_bound, None, options, average("last half"), **more)


def _adaptive(row: str, rounds: int, batch: int, clip_bound: float, step: float, **more: Any) -> Setting:
    return Setting(row, _method(row)[0], rounds, batch, clip_bound, step, release=average("last half"), **more)


ADADPS_PAPER = {  # (clip bound, step) of each row, its table 5
    "autoencoder": {
        "DP-SGD": (0.05, 0.5),
        "DP-Adam": (0.01, 0.001),
        "DP-RMSProp": (0.01, 0.001),
        "AdaDPS (RMSProp)": (3.0, 0.005),
        "AdaDPS (Adam)": (3.0, 0.005),
    },
    "classification": {
        "DP-SGD": (0.5, 0.01),
        "DP-Adam": (0.5, 0.001),
        "DP-RMSProp": (0.5, 0.001),
        "AdaDPS (RMSProp)": (2.0, 0.005),
        "AdaDPS (Adam)": (2.0, 0.005),
    },
    "tags": {
        "DP-SGD": (0.1, 1.0),
        "DP-Adam": (0.1, 0.01),
        "DP-RMSProp": (0.2, 0.01),
        "AdaDPS (RMSProp)": (1.0, 0.5),
        "AdaDPS (Adam)": (1.0, 0.5),
    },
    "lstm": {
        "DP-SGD": (0.1, 0.1),
        "DP-Adam": (0.1, 0.001),
        "DP-RMSProp": (0.1, 0.001),
        "AdaDPS (RMSProp)": (0.2, 0.1),
        "AdaDPS (Adam)": (0.2, 0.05),
    },
}
ADADPS_PUBLISHED = {  # its table 6
    "autoencoder": (5.013, 3.697, 3.636, 3.566, 3.443),
    "classification": (0.9273, 0.9333, 0.9314, 0.9377, 0.9541),
    "tags": (0.28, 0.30, 0.31, 0.40, 0.40),
    "lstm": (0.70, 0.69, 0.69, 0.73, 0.73),
}


def _adadps_table(
    name: str, make: Callable[[], Task], size: int, passes: int, noise: float, epsilon: float, **more: Any
) -> Table:
    """A row of AdaDPS' table: `size` private examples, batches of 64."""
    pairs = ADADPS_PAPER[name]
    published = dict(zip(pairs, ADADPS_PUBLISHED[name], strict=True))
    return Table(make, epsilon, 1 / size, published=published, paper=_printed(pairs, round(passes * size / 64), noise), **more)


def _ours_autoencoder() -> list[Setting]:
    """Start values four times Glorot's, as for sigmoids: with torch's, a layer passes on a seventh of its inputs' variation."""
    common: dict[str, Any] = {"rounds": 300, "batch": 1024, "clip_bound": 0.01, "build": partial(autoencoder, 4.0)}
    return [
        _descent("DP-SGD", step=0.5, **common),
        _adaptive("DP-Adam", step=0.01, **common),
        _adaptive("DP-RMSProp", step=0.01, **common),
        _descent("AdaDPS (RMSProp)", step=0.5, **common),
        _descent("AdaDPS (Adam)", step=0.5, **common),
    ]


def _ours_classification() -> list[Setting]:
    common: dict[str, Any] = {"rounds": 300, "batch": 2048, "clip_bound": 0.1}
    return [
        _descent("DP-SGD", step=1.0, **common),
        _adaptive("DP-Adam", step=0.01, **common),
        _adaptive("DP-RMSProp", step=0.003, **common),
        _descent("AdaDPS (RMSProp)", step=1.0, options={"stability": 3e-3}, **common),
        _descent("AdaDPS (Adam)", step=0.1, options={"stability": 3e-3}, **common),
    ]


def _ours_tags() -> list[Setting]:
    """Without a bias, whose gradient is six times as long as the weights': clipped with it, they learn next to nothing."""
    build = partial(nn.Linear, 10000, 500, bias=False)
    common: dict[str, Any] = {"rounds": 40, "batch": 1024, "clip_bound": 0.01, "build": build}
    return [
        _descent("DP-SGD", step=30.0, **common),
        _adaptive("DP-Adam", step=1.0, **common),
        _adaptive("DP-RMSProp", step=0.3, **common),
        _descent("AdaDPS (RMSProp)", step=30.0, options={"stability": 3e-3}, **common),
        _descent("AdaDPS (Adam)", step=30.0, options={"stability": 3e-3}, **common),
    ]


def _ours_lstm() -> list[Setting]:
    common: dict[str, Any] = {"rounds": 60, "batch": 256, "clip_bound": 0.1}
    return [
        _descent("DP-SGD", step=1.0, **common),
        _adaptive("DP-Adam", step=0.01, **common),
        _adaptive("DP-RMSProp", step=0.003, **common),
        _descent("AdaDPS (RMSProp)", step=1.0, options={"stability": 3e-3}, **common),
        _descent("AdaDPS (Adam)", step=0.1, options={"stability": 3e-3}, **common),
    ]


def _srm_table(epsilon: float, published: dict[str, float]) -> Table:
    """Clip bound 1.5 and γ = C₂ as printed; batch, γ and steps are of the printed grids. The rounds are in a figure: ours."""
    sgd = partial(Setting, method="dp-sgd", batch=512, clip_bound=1.5, step=0.5, options=PLAIN["dp-sgd"])
    srm = partial(Setting, method="dp-srm", rounds=300, batch=512, clip_bound=1.5, step=0.5)
    paper = [sgd("DP-SGD", rounds=1000), sgd("DP-SGD, as few rounds", rounds=300)]
    for share in (0.5, 0.9):
        options = {"change_bound": share, "refresh": share, "longest_step": 1e6}  # a tuned step, not a limited one
        paper.append(srm(f"DP-SRM, γ = {share}", options=options))
    wide: dict[str, Any] = {"batch": 1024, "clip_bound": 0.1, "rounds": 300}
    options = {"change_bound": 0.09, "refresh": 0.9, "longest_step": 1e6}
    ours = [
        _descent("DP-SGD", step=1.0, **wide),
        Setting("DP-SRM", "dp-srm", step=50.0, options=options, release=average("last half"), **wide),
    ]
    return Table(pictures, epsilon, 1e-5, "test error, %", published, paper, ours)


TABLES = {
    "autoencoder": _adadps_table("autoencoder", images, 59400, 80, 1.0, 1.6, measure="test loss × 100", ours=_ours_autoencoder()),
    "classification": _adadps_table(
        "classification", classes, 59400, 50, 1.0, 1.25, measure="test accuracy", ours=_ours_classification()
    ),
    "tags": _adadps_table("tags", tags, 6533, 30, 0.95, 0.84, measure="test accuracy", ours=_ours_tags()),
    "lstm": _adadps_table("lstm", reviews, 24750, 100, 1.0, 2.8, measure="test accuracy", ours=_ours_lstm()),
    "srm, ε = 1.2": _srm_table(1.2, {"DP-SGD": 5.33, "DP-SRM": 4.49}),
    "srm, ε = 3": _srm_table(3.0, {"DP-SGD": 3.81, "DP-SRM": 3.62}),
}


# ---------------------------------------------------------------- runs


def train(
    task: Task, table: Table, setting: Setting, seed: int, progress: bool | Callable[[int], None] = False
) -> dict[str, Any]:
    """One run."""
    torch.manual_seed(seed)
    model = (setting.build or task.build)()
    budget = {"budget": Budget(table.epsilon, table.delta)} if setting.noise is None else {}
    started, busy = time.perf_counter(), time.process_time()
    result = fit(
        model, task.loss, task.private, **budget, noise_multiplier=setting.noise, delta=None if budget else table.delta,
        method=setting.method, rounds=setting.rounds, batch_size=setting.batch, clip_bound=setting.clip_bound,
        learning_rate=setting.step, release=setting.release, options=setting.options,
        public=task.public if setting.method == "adadps" else None, progress=progress, seed=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - started, time.process_time() - busy
    with torch.no_grad():
        outputs = torch.cat([model.eval()(part) for part in torch.split(task.test[0], 1000)])
    statement = result.privacy.statement
    return {
        "score": round(task.score(outputs, task.test[1]), 4),
        "epsilon": round(statement.epsilon, 4),
        "noise": round(float(statement.settings["noise multiplier"]), 4),
        "rounds": setting.rounds,
        "batch": setting.batch,
        "clip": setting.clip_bound,
        "step": setting.step,
        "options": setting.options,
        "seconds": round(seconds[0], 1),
        "cpu_seconds": round(seconds[1], 1),
    }


def seconds_per_round(task: Task, table: Table, setting: Setting) -> float:
    """The median CPU time of eight rounds, which are not the first."""
    clock: list[float] = []
    task = replace(task, test=(task.test[0][:1], task.test[1][:1]))
    short = replace(setting, rounds=10, noise=setting.noise or 1.0)
    train(task, table, short, 0, progress=lambda _: clock.append(time.process_time()))
    return float(np.median(np.diff(clock)[1:]))


def missing(table: Table, asked: argparse.Namespace, known: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Setting]]:
    """The runs that are asked for and not known, seed by seed: what tells each from the others, and its setting."""
    for seed in range(1 if asked.time else asked.seeds):
        for kind in asked.settings:
            for setting in table.paper if kind == "paper" else table.ours:
                key = {"settings": kind, "row": setting.row, "seed": seed}
                if (asked.rows is None or setting.row in asked.rows) and not any(key.items() <= run.items() for run in known):
                    yield key, setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--settings", nargs="+", choices=["paper", "ours"], default=["paper", "ours"])
    parser.add_argument("--rows", nargs="+", help="these rows; all unless told otherwise")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--time", action="store_true", help="only time a round of the rows that were not run")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    found: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json.exists() else {"tables": {}}
    for name in asked.only:
        table, task = TABLES[name], TABLES[name].make()
        about = {"measure": table.measure, "epsilon": table.epsilon, "delta": table.delta, "published": table.published}
        known = found["tables"].setdefault(name, {"runs": []})
        known |= about
        for key, setting in missing(table, asked, known["runs"]):
            if asked.time:
                seconds = round(seconds_per_round(task, table, setting), 4)
                run = {"rounds": setting.rounds, "seconds": seconds}
                known.setdefault("timed", {}).setdefault(key["settings"], {})[setting.row] = run
            else:
                run = {**key, **train(task, table, setting, seed=key["seed"])}
                known["runs"].append(run)
            print(name, key, run, flush=True)
            found["machine"] = machine()
            asked.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
