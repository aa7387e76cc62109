"""Model cards (Mitchell et al. 2019) in Markdown: what a model is, what it may be used for, how good and how private it is."""

import html
import re

from privopt.escaping import printable
from privopt.privacy.budget import UNITS, describe_neighbours
from privopt.privacy.statement import NO_GUARANTEE
from privopt.report.contents import Contents, Evaluation
from privopt.report.deployments import TO_FILL_IN

MOST_FEATURES = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")


def write_card(contents: Contents) -> str:
    """The model card. What only the people behind a model know stands as (to fill in)."""
    statement, budget = contents.statement, contents.statement.budget
    claim = (
        f"({'ε, δ' if budget.delta else 'ε'})-differentially private: **ε = {statement.epsilon:.4g}, δ = {budget.delta:.3g}**, "
        f"for {UNITS[budget.unit]}."
        if statement.private
        else f"**{NO_GUARANTEE}**"
    )
    parts = [
        f"# Model card: {escape(contents.target)}, from {escape(contents.data_name)}",
        "## Model details",
        _list(
            [
                f"Kind: {contents.kind}",
                f"Date: {contents.date}",
                f"Method: {escape(statement.settings.get('method', 'unknown'))}, by privopt {contents.versions['privopt']}",
                *([f"Classes: {escape(', '.join(contents.model.classes))}"] if contents.model.classes else []),
                f"Owner, licence, contact: {TO_FILL_IN}",
            ]
        ),
        "## Intended use",
        _list([f"Purpose and users: {TO_FILL_IN}", f"Out of scope: {TO_FILL_IN}"]),
        "## Training data",
        _list([f"{escape(contents.data_name)}{_size(contents)}", f"How the data came about, and consent: {TO_FILL_IN}"]),
        _table(("Column", "Values", "Source"), contents.features[:MOST_FEATURES]) if contents.features else "",
        "## Privacy",
        claim,
        *(["**WARNING: the noise came from a fixed seed, for tests only.**"] if statement.seeded else []),
        *([_guess(contents)] if statement.private else []),
        f"Compared are data sets that differ in {describe_neighbours(budget.neighbours, budget.unit)}.",
        *_named("Taken as public:", statement.assumed_public),
        *_named("Estimated privately, inside this budget:", statement.paid_for),
        *_named("Public data used:", statement.public_data),
        *_named("Assumed (checked, but not proved):", statement.assumed),
        *_named("Not covered:", statement.not_covered),
        "## Quality",
        *(part for one in contents.evaluations for part in _quality(one)),
        "" if contents.evaluations else f"Not measured. {TO_FILL_IN}",
        "## Limits and risks",
        _list(
            [
                "The privacy noise moves every prediction; groups with few rows are learnt least well. Compare them before use.",
                f"Known biases, and who may be harmed: {TO_FILL_IN}",
            ]
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: object) -> str:
    r"""Escape text from outside, so that Markdown shows it as it is.

    >>> print(escape("a|b*c <script>"))
    a\|b\*c &lt;script&gt;
    """
    return _SPECIAL.sub(r"\\\1", html.escape(printable(str(text)), quote=False))


def _guess(contents: Contents) -> str:
    return (
        "Somebody who knows everything else, and guesses whether one unit took part by the toss of a fair coin, is right at most "
        f"{100 * (contents.guess or 1.0):.1f} times of 100 after a look at all that was released."
    )


def _quality(one: Evaluation) -> list[str]:
    words = f"On {one.size} {'rows' if one.statement.budget.unit == 'example' else one.statement.budget.unit + 's'} of "
    columns = ("Measure", "Value", f"{one.confidence:.0%} interval")
    return [f"{words}{escape(one.data)}, which cost {one.cost}:", _table(columns, [number.words for number in one.numbers])]


def _size(contents: Contents) -> str:
    statement = contents.statement
    noun = "row" if statement.budget.unit == "example" else statement.budget.unit
    return "" if statement.examples is None else f": {statement.examples} {noun}s"


def _list(items: list[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _named(title: str, items: object) -> list[str]:
    found = [escape(item) for item in items]  # type: ignore[attr-defined]
    return [title, _list(found)] if found else []


def _table(columns: tuple[str, ...], rows: object) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]  # type: ignore[attr-defined]
    return "\n".join(lines)
