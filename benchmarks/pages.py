"""Write the measured parts of the documentation's pages, from benchmarks/results.

    python benchmarks/pages.py

A measured part stands between `<!-- NAME -->` and `<!-- end -->`, where NAME is that of a function here and of its results.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
Part = Callable[[Any], str]  # the Markdown of a part, from what its file of results holds


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


# ---------------------------------------------------------------- assurance


def audits(found: dict[str, Any]) -> str:
    """The audits that have to be tight, and a count of all."""
    rows = [
        [row["game"], f"{row['claim']:.3f}", f"{row['bound']:.3f}", f"{row['bound'] / row['claim']:.2f}", str(row["replays"])]
        for row in found["audits"]
        if row["tight"]
    ]
    exceeded = [row["game"] for row in found["audits"] if row["exceeded"]]
    above = f"{len(found['audits'])} audits (`{found['command']}`); claims exceeded: {', '.join(exceeded) or 'none'}."
    heads = ["game", "claimed ε", "audited ε ≥", "ratio", "replays"]
    return f"{above} Those that have to be tight:\n\n{table(heads, rows)}"


def architectures(found: dict[str, Any]) -> str:
    """What the long mode showed."""
    return f"`{found['command']}`: {found['models']} models, {found['failures']} failures."


def mutants(found: dict[str, Any]) -> str:
    """How many bugs were caught."""
    return f"`{found['command']}`: {found['caught']} caught, {len(found['survived'])} survived."


# ---------------------------------------------------------------- speed

NETWORKS = {
    "logistic": "logistic, 123 inputs (256)",
    "linear-5m": "linear 10,000 → 500 (64)",
    "mlp-128": "MLP 784-128-128-10 (128)",
    "mlp-512": "MLP 784-128-128-10 (512)",
    "mnist-cnn": "MNIST CNN (256)",
    "autoencoder": "autoencoder (64)",
    "lstm": "LSTM, sequence 256 (64)",
    "transformer": "transformer, 2 layers (32)",
    "cifar-cnn": "CIFAR CNN (128)",
}  # and the batch


def networks(found: dict[str, Any]) -> str:
    """One private step as a multiple of the plain one: median and quartiles."""
    rows = []
    for model, name in NETWORKS.items():
        low, high = found[model]["privopt"]["quartiles"]
        peers = [f"{found[model][peer]['ratio']:.3g} ×" for peer in ("opacus-ghost", "opacus-hooks", "opacus-hooks-tuned")]
        rows.append([name, f"{found[model]['privopt']['ratio']:.2f} ×", f"{low:.2f} – {high:.2f}", *peers])
    return table(["model (batch)", "privopt", "quartiles", "Opacus ghost", "Opacus hooks", "hooks, allocator tuned"], rows)


def memory(found: dict[str, Any]) -> str:
    """Megabytes that a step takes beyond model and data."""
    contenders = ("privopt", "opacus-ghost", "non-private")
    rows = [
        [name, *(f"{found[model][contender]['memory_mb']:.3g}" for contender in contenders)] for model, name in NETWORKS.items()
    ]
    return table(["model (batch)", "privopt", "Opacus ghost", "not private"], rows)


def linear(found: dict[str, Any]) -> str:
    """Everything else that was timed, as the program says it."""
    others = [row for row in found["rows"] if not row["section"].startswith("networks")]
    return table(["what", "result"], [[f"{row['section']}: {row['name']}", row["value"]] for row in others])


def people_have(found: dict[str, Any]) -> str:
    """Time of networks that people have, and memory where it was measured."""
    peers, rows = ("opacus-ghost", "opacus-hooks"), []
    for name, row in found["models"].items():
        times = [f"{row[kind]:.2f} ×" if isinstance(row.get(kind), float) else "–" for kind in peers]
        memory = row.get("memory_mb", {})
        held = [str(memory[kind]) if kind in memory else "–" for kind in ("plain", "privopt", *peers, "check")]
        timed = "plain_seconds" in row
        first = [f"{row['plain_seconds']:.3g} s", f"{row['ratio']:.2f} ×"] if timed else ["–", "–"]
        rows.append([name, *first, *times, f"{row['check_steps']:g}" if timed else "–", *held])
    heads = ["model", "plain gradient", "privopt", "Opacus ghost", "Opacus hooks", "steps of the check"]
    heads += [f"MB, {kind}" for kind in ("plain", "privopt", "ghost", "hooks", "check")]
    if not any("memory_mb" in row for row in found["models"].values()):
        heads, rows = heads[:6], [row[:6] for row in rows]
    about = f"`{found['command']}`, CPU time on {found['threads']} thread; –: Opacus does not run it, or it was not measured."
    return f"{about}\n\n{table(heads, rows)}"


PERSON_MODELS = {
    "table": "64 units on a table of 60 columns",
    "mlp-512": "dense layers on MNIST",
    "autoencoder": "autoencoder",
    "mnist-cnn": "convolutions on MNIST",
    "cifar-cnn": "convolutions on CIFAR",
    "lstm": "LSTM",
    "transformer": "transformer",
}


def persons_networks(found: dict[str, Any]) -> str:
    """A step of persons beside one of rows, for networks."""
    return _persons(found, "model", PERSON_MODELS)


def persons_linear(found: dict[str, Any]) -> str:
    """The same for linear models."""
    return _persons(found, "rows, outputs, persons of a batch", {})


def _persons(found: dict[str, Any], head: str, names: dict[str, str]) -> str:
    ratios = found["step of persons / step of rows, by rows of a person"]
    rows = [[names.get(name, name), *(f"{ratio:.2f}" for ratio in ratios[name].values())] for name in names or ratios]
    earlier = f" {found['earlier']}" if "earlier" in found else ""
    return f"`{found['command']}`.{earlier}\n\n{table([head, *next(iter(ratios.values()))], rows)}"


# ---------------------------------------------------------------- federations


def federated(found: dict[str, Any]) -> str:
    """Accuracy of each method in each federation, at its end and on the way."""
    rows = []
    for study in found["studies"]:
        federation = study["federation"]
        for method, one in study["methods"].items():
            (mean, spread), curve = one["accuracy"], dict(one["curve"])
            early, half = (
                curve[min(curve, key=lambda place: abs(place - share * federation["rounds"]))] for share in (0.25, 0.5)
            )
            accuracy = [f"{mean:.3f} ± {spread:.3f}", f"{early:.3f}", f"{half:.3f}"]
            rows.append([federation["name"], method, f"{one['epsilon']:.3g}", *accuracy])
    heads = ["federation", "method", "ε", "test accuracy", "after a quarter of the rounds", "half"]
    about = f"{found['data']}. `{found['command']}`; the commonest tag has {found['majority']:.1%} of the test posts."
    return f"{about}\n\n{table(heads, rows)}"


# ---------------------------------------------------------------- images

PUBLISHED = {3.0: "98.7", 1.2: "98.1"}  # Tramèr, Boneh: Differentially Private Learning Needs Better Features


def images(found: dict[str, Any]) -> str:
    """Accuracy of the recipe for images."""
    scores: dict[float, list[float]] = {}
    for run in found["runs"]:
        scores.setdefault(run["epsilon"], []).append(run["accuracy"])
    rows = [
        [f"{epsilon:g}", f"{fmean(own):.2f} ± {pstdev(own):.2f}", str(len(own)), PUBLISHED.get(epsilon, "–")]
        for epsilon, own in scores.items()
    ]
    heads = ["ε", "test accuracy, %", "seeds", "Tramèr and Boneh"]
    return f"`{found['command']}`, δ = {found['delta']:g}:\n\n{table(heads, rows)}"


def image_options(found: dict[str, Any]) -> str:
    """Accuracy and time with each option for images."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in found["runs"]:
        runs.setdefault(run["option"], []).append(run)
    rows = [
        [option, _mean_of([run["accuracy"] for run in own]), f"{fmean(run['cpu_seconds'] for run in own):.0f} s"]
        for option, own in runs.items()
    ]
    about = f"`{found['command']}`, ε = {found['epsilon']:g}, δ = {found['delta']:g}; mean ± deviation, in brackets the seeds:"
    return f"{about}\n\n{table(['', 'test accuracy, %', 'CPU time of a run'], rows)}"


def default_networks(found: dict[str, Any]) -> str:
    """What a budget alone reaches, beside the best settings by hand."""
    runs: dict[tuple[str, float], dict[str, list[dict[str, Any]]]] = {}
    for run in found["runs"]:
        runs.setdefault((run["pair"], run["epsilon"]), {}).setdefault(run["settings"], []).append(run)
    rows = []
    for (pair, epsilon), own in runs.items():
        alone = own.pop("default")
        hand = max(own, key=lambda settings: _first_seed(own[settings]), default=None)
        by_hand = ["–", "–"] if hand is None else [_mean_of([run["score"] for run in own[hand]]), hand]
        time = f"{alone[0]['rounds']} rounds, {fmean(run['cpu_seconds'] for run in alone):.2g} s"
        rows.append([pair, f"{epsilon:g}", _mean_of([run["score"] for run in alone]), time, *by_hand])
    heads = ["data, network", "ε", "budget alone", "CPU time of a run", "by hand", "which was"]
    return f"`{found['command']}`\n\n{table(heads, rows)}"


def _first_seed(runs: list[dict[str, Any]]) -> float:
    """The score by which a setting was chosen."""
    return float(next(run["score"] for run in runs if run["seed"] == 0))


def _mean_of(scores: list[float]) -> str:
    """Mean ± deviation, and in brackets the number of seeds."""
    spread = f" ± {pstdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{fmean(scores):.2f}{spread} ({len(scores)})"


# ---------------------------------------------------------------- tables

CONTENDERS = ("nothing", "declared", "DP-EBM", "DP-SGD", "diffprivlib")


def tables(found: dict[str, Any]) -> str:
    """Means over seeds: log loss and AUC, or R²."""
    cells: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        cells.setdefault((row["table"], row["epsilon"], row["model"]), []).append(row)
    names = list(dict.fromkeys((row["table"], row["epsilon"]) for row in found["rows"]))
    rows = [
        [name, f"{epsilon:g}", *(_cell(cells.get((name, epsilon, model))) for model in CONTENDERS)] for name, epsilon in names
    ]
    for row in rows:
        row += [_cell(cells.get((row[0], 0.1, model))) for model in ("not private", "constant")]
    heads = [
        "table",
        "ε",
        "ours, nothing declared",
        "ours, declared",
        "DP-EBM",
        "DP-SGD",
        "diffprivlib",
        "not private",
        "constant",
    ]
    earlier = f" {found['earlier']}" if "earlier" in found else ""
    return f"`{found['command']}`; log loss / AUC, or R²; in brackets the seeds.{earlier}\n\n{table(heads, rows)}"


def unseen(found: dict[str, Any]) -> str:
    """The same, of tables that nobody looked at while the rules were made."""
    return tables(found)


def _cell(rows: list[dict[str, Any]] | None) -> str:
    if not rows:
        return "–"
    if "refused" in rows[0]:
        return "refused"
    scores = [sum(row[score] for row in rows) / len(rows) for score in ("loss", "auc", "r2") if score in rows[0]]
    return " / ".join(f"{score:.3f}" for score in scores) + f" ({len(rows)})"


# ---------------------------------------------------------------- the papers' networks

ADADPS_TABLES = {
    "autoencoder": "MNIST autoencoder, test loss × 100 (lower is better)",
    "classification": "MNIST classification, perceptron, test accuracy",
    "tags": "tags of posts, 10,000 × 500 linear, test accuracy",
    "lstm": "IMDB reviews, LSTM, test accuracy",
}
KINDS = ("paper", "ours")


def papers_adadps(found: dict[str, Any]) -> str:
    """Each row by the paper's settings and by ours, beside what was published."""
    parts = []
    for name, title in ADADPS_TABLES.items():
        if (table_ := found["tables"].get(name)) is None:
            continue
        rows = [
            [row, f"{published:g}", *(_mean_score(_runs(table_, kind, row)) or _price(table_, kind, row) for kind in KINDS)]
            for row, published in table_["published"].items()
        ]
        heads = ["", "published", "the paper's settings", "ours"]
        about = f"**{title}**, ε = {table_['epsilon']:g}.{_rounds(table_)}"
        parts.append(f"{about}\n\n{table(heads, rows)}")
    return "\n\n".join(parts)


def papers_srm(found: dict[str, Any]) -> str:
    """DP-SRM and DP-SGD: error, rounds and time, of which the least is closest to that of an idle machine."""
    rows = []
    for name, table_ in found["tables"].items():
        for kind in KINDS if name.startswith("srm") else ():
            for row in dict.fromkeys(run["row"] for run in table_["runs"] if run["settings"] == kind):
                runs = _runs(table_, kind, row)
                seconds = min(run["cpu_seconds"] for run in runs)
                cells = [f"{runs[0]['rounds']} × {runs[0]['batch']}", _mean_score(runs, 2), f"{seconds:.0f} s"]
                published = table_["published"].get(row.partition(", γ")[0])
                rows.append([f"{table_['epsilon']:g}", kind, row, *cells, "" if published is None else f"{published:g}"])
    heads = ["ε", "settings", "method", "rounds × batch", "test error, %", "CPU time, least of the runs", "published"]
    return table(heads, rows)


def _runs(table_: dict[str, Any], kind: str, row: str) -> list[dict[str, Any]]:
    return [run for run in table_["runs"] if (run["settings"], run["row"]) == (kind, row)]


def _mean_score(runs: list[dict[str, Any]], digits: int = 3) -> str:
    """Mean ± deviation, and in brackets the number of seeds."""
    if not runs:
        return ""
    scores = [run["score"] for run in runs]
    spread = f" ± {pstdev(scores):.{digits}f}" if len(scores) > 1 else ""
    return f"{fmean(scores):.{digits}f}{spread} ({len(scores)})"


def _price(table_: dict[str, Any], kind: str, row: str) -> str:
    """What a row that was not run would take, by the time of a round."""
    if (timed := table_.get("timed", {}).get(kind, {}).get(row)) is None:
        return "not run"
    minutes = timed["rounds"] * timed["seconds"] / 60
    length = f"{minutes / 60:.1f} h" if minutes >= 100 else f"{minutes:.0f} min"
    return f"not run: {timed['rounds']:,} rounds of {timed['seconds']:.3g} s, {length}"


def _rounds(table_: dict[str, Any]) -> str:
    """The rounds, batches and ε of both kinds of settings."""
    said = []
    for kind, words in zip(KINDS, ("the paper's settings", "ours"), strict=True):
        if runs := [run for run in table_["runs"] if run["settings"] == kind]:
            spent = max(run["epsilon"] for run in runs)
            said.append(
                f"{words}: {runs[0]['rounds']} rounds of {runs[0]['batch']}, noise {runs[0]['noise']:.2f}, ε = {spent:.2f}"
            )
    return f" {'; '.join(said).capitalize()}. In brackets the seeds." if said else ""


def network_memory(found: dict[str, Any]) -> str:
    """What fit holds of a large table, and the time of a step."""
    rows = [
        [name, f"{fit['held']:.2f} ×", f"{fit['ratio']:.2f} ×" if "ratio" in fit else "–"] for name, fit in found["fits"].items()
    ]
    heads = ["method, gradient of the table", "memory of `fit`, the model's own included", "private step beside the plain one"]
    return f"`{found['command']}`, in multiples of the parameters' memory, and of CPU time:\n\n{table(heads, rows)}"


# ---------------------------------------------------------------- pages

PAGES: dict[str, dict[Part, str]] = {
    "assurance.md": {audits: "audits", architectures: "architectures", mutants: "mutants"},
    "federated.md": {federated: "federated"},
    "images.md": {images: "images", image_options: "image_options"},
    "defaults.md": {default_networks: "default_networks", tables: "tables", unseen: "unseen"},
    "benchmarks.md": {networks: "speed", memory: "speed", linear: "speed"},
    "methods/adadps.md": {papers_adadps: "papers_networks"},
    "methods/dp_srm.md": {papers_srm: "papers_networks"},
    "persons.md": {persons_linear: "persons_linear", persons_networks: "persons"},
    "networks.md": {people_have: "people_have", network_memory: "network_memory"},
}  # the parts of each page, and their files of results


def page(name: str) -> str:
    """A page with its measured parts made anew; a part without results stays as it is."""
    text = (ROOT / "docs" / name).read_text()
    for part, results in PAGES[name].items():
        path = RESULTS / f"{results}.json"
        if not path.exists():
            continue
        found = re.search(rf"<!-- {part.__name__} -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
        assert found is not None, part.__name__
        text = f"{text[: found.start(1)]}{part(json.loads(path.read_text()))}\n{text[found.end(1) :]}"
    return text


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / "docs" / name).write_text(page(name))
