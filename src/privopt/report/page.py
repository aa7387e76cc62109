"""The report of a run as one HTML page: no scripts, and nothing that is loaded from elsewhere.

What is claimed comes first, in plain words; every plot has its numbers in a table. All text that is not ours (names of files,
columns and classes, settings) is escaped where it enters the page.
"""

import json
from pathlib import Path

from privopt.durable import write_atomically
from privopt.errors import PrivoptError, warn
from privopt.privacy.accountants import choose
from privopt.privacy.budget import UNITS, cautions, describe_neighbours
from privopt.privacy.events import describe
from privopt.privacy.statement import NO_GUARANTEE
from privopt.report import pieces
from privopt.report.contents import COVERAGE, DEVIATIONS, Coefficient, Contents, Evaluation
from privopt.report.deployments import registry_entry
from privopt.report.planning import attacker_table
from privopt.report.plots import MOST_DRAWN, NO_PLOTS, can_draw, draw_coefficients, draw_spending, draw_trade_off
from privopt.runs.folder import RunFolder

FILE = "report.html"
MOST_ROWS = 200  # of a table
MOST_CLASSES = 20  # of a confusion matrix
SEEDED = "The noise came from a fixed seed. Whoever knows the seed can remove the noise: this run is for tests only."


def write_report(folder: RunFolder) -> Path:
    """Write `report.html` into the folder of a finished run, and return its path."""
    path = folder.path / FILE
    write_atomically(path, render_page(Contents.of(folder)).encode())
    return path


def try_report(folder: RunFolder) -> None:
    """Write the report of a run that has just ended; warn if that is not possible.

    The model and the statement are there already, and stay: a report that cannot be written costs nothing but itself.
    """
    try:
        write_report(folder)
        return
    except PrivoptError as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.filename or folder.path / FILE}: {error.strerror or type(error).__name__}."
    except Exception as error:  # a bug of the report must not look like a failure of the run
        reason = f"{type(error).__name__}."
    warn(
        f"the report was not written: {reason} The model and the statement are complete. To try again: "
        f"privopt show {folder.path} --html"
    )


def render_page(contents: Contents, *, plots: bool | None = None) -> str:
    """The page. `plots` says whether to draw; by default if matplotlib is installed."""
    drawn = can_draw() if plots is None else plots
    sections = (
        ("claim", "What is protected, and how sure that is", _claim(contents)),
        ("quality", "How good the model is", _quality(contents)),
        ("attacker", "What an attacker can say", _attacker(contents, drawn)),
        ("spending", "What was spent", _spending(contents, drawn)),
        ("model", "The model", _model(contents, drawn)),
        ("features", "Features, and where their ranges come from", _features(contents)),
        ("settings", "Settings", _settings(contents)),
        ("ledger", "Ledger", _ledger(contents)),
        ("again", "Reproducibility", _reproducibility(contents)),
    )
    title = f"Privacy report: {contents.target}, from {contents.data_name}"
    links = " · ".join(f'<a href="#{name}">{pieces.text(words)}</a>' for name, words, _ in sections[1:])
    return pieces.page(
        title,
        pieces.facts(_heading(contents)),
        sections,
        "It is made from what this run released: its statement, its ledger and its model. No row of the data was read for it.",
        after=f'<nav aria-label="Sections"><p class="note">In this report: {links}</p></nav>\n',
    )


# ---------------------------------------------------------------- sections


def _heading(contents: Contents) -> list[tuple[str, str]]:
    statement = contents.statement
    size = [] if statement.examples is None else [("Size", f"{statement.examples} {_noun(contents)}s")]
    return [
        ("Data", contents.data_name),
        ("Predicts", contents.target),
        ("Date", contents.date),
        ("Unit", UNITS[statement.budget.unit]),
        *size,
        ("Model", contents.kind),
    ]


def _noun(contents: Contents) -> str:
    unit = contents.statement.budget.unit
    return "row" if unit == "example" else unit


def _claim(contents: Contents) -> str:
    statement, budget, noun = contents.statement, contents.statement.budget, _noun(contents)
    parts = []
    if statement.seeded:
        parts.append(pieces.warning(SEEDED))
    if not statement.private:
        parts += ['<p class="claim">No guarantee: not private</p>', pieces.warning(NO_GUARANTEE)]
    else:
        guess = 100 * (contents.guess or 1.0)
        changed = "took part" if budget.neighbours == "add-remove" else "is the one it is, and not another"
        parts += [
            f'<p class="claim">ε = {statement.epsilon:.4g}, δ = {budget.delta:.3g}</p>',
            pieces.note(f"({'ε, δ' if budget.delta else 'ε'})-differentially private, for {UNITS[budget.unit]}"),
            *(pieces.warning(caution) for caution in cautions(budget.delta, statement.examples or 10**18, budget.unit)),
        ]
        protected = (
            f"Whether any one {noun} of the data {changed} is hidden from whoever has what was released: {statement.released}. "
            "This holds whatever else they know, and whatever they compute from it."
        )
        unit = (
            f"The unit of protection is {UNITS[budget.unit]}. Compared are data sets that differ in "
            f"{describe_neighbours(budget.neighbours, budget.unit)}."
        )
        coin = (
            f"ε measures how sure: {statement.epsilon:.4g} is {contents.strength}. In words: somebody knows everything but "
            f"whether one {noun} {changed}, for which a fair coin was tossed. A guess is right 50 times of 100. After a look at "
            "all that was released it is right at most"
        )
        most = f"<strong>{guess:.1f} times of 100</strong>, however clever.{_delta(budget.delta)}"
        parts += [
            f"<h3>What is protected</h3><p>{pieces.text(protected)}</p>",
            f"<h3>For whom</h3><p>{pieces.text(unit)}</p>",
            f"<h3>How sure</h3><p>{pieces.text(coin)} {most}</p>",
        ]
    parts += ["<h3>What is not covered</h3>", pieces.bullets(statement.not_covered)]
    for heading, items in (
        ("Taken as public", statement.assumed_public),
        ("Estimated privately, inside this budget", statement.paid_for),
        ("Public data used", statement.public_data),
        ("Assumed: checked, but not proved", statement.assumed),
    ):
        if items:
            parts += [f"<h3>{heading}</h3>", pieces.bullets(items)]
    return "\n".join(parts)


def _delta(delta: float) -> str:
    if not delta:
        return ""
    return f" δ is the probability, {delta:.3g}, that is set aside for outcomes which ε does not bound; the number includes it."


def _quality(contents: Contents) -> str:
    if not contents.evaluations:
        return (
            "<p>Nothing was measured: there is no evaluation.json in the run folder. A score of private rows reveals something "
            "about them, so it is a release with a price of its own: <code>privopt evaluate RUN FILE --epsilon E</code>. For "
            "rows that may be public, <code>privopt predict RUN FILE --target COLUMN</code> tells how good the model is.</p>"
        )
    return "\n".join(map(_evaluation, contents.evaluations))


def _evaluation(one: Evaluation) -> str:
    unit = one.statement.budget.unit
    units = f"{'row' if unit == 'example' else unit}s"
    words = f"Measured with noise on {one.size} {units} of {one.data} ({one.name}). This cost {one.cost}"
    words += f"; these {units} were set aside from training." if one.held_out else ", on top of what training cost those in both."
    columns = ("Measure", "Value", f"{one.confidence:.0%} interval")
    parts = [f"<p>{pieces.text(words)}</p>", *([pieces.warning(SEEDED)] if one.statement.seeded else [])]
    parts.append(
        pieces.table("Quality, with intervals that include the noise", columns, [n.words for n in one.numbers], numbers=(1, 2))
    )
    if one.confusion and len(one.confusion[0]) == len(one.classes) <= MOST_CLASSES:
        names = [*one.classes, "(other)"][: len(one.confusion)]
        rows = [(name, *(f"{count:.0f}" for count in row)) for name, row in zip(names, one.confusion, strict=False)]
        table = pieces.table(
            "Noisy counts, by true class and predicted class", ("True class", *one.classes), rows, numbers=range(1, 99)
        )
        parts.append(pieces.details("Confusion matrix", table))
    return "\n".join(parts)


USUAL = (1.0, 3.0, 10.0)  # ε to compare with


def _attacker(contents: Contents, drawn: bool) -> str:
    statement, delta = contents.statement, contents.statement.budget.delta
    if not statement.private:
        return "<p>Anything: this release is not private.</p>"
    words = (
        f"The most that whoever sees the release can say about one {_noun(contents)}, with ε = {statement.epsilon:.4g} and, for "
        "comparison, with other ε: how many who took part are recognised, at the price of how many false accusations. Real "
        "attacks may do far worse; none can do better."
    )
    others = [one for one in USUAL if abs(one - statement.epsilon) > 0.05 * one]
    budgets = [(one, delta) for one in sorted([statement.epsilon, *others])]
    plot = pieces.figure(draw_trade_off(budgets, statement.epsilon, words), "Thick: this release.") if drawn else ""
    return f"<p>{pieces.text(words)}</p>{plot}{pieces.table(*attacker_table(budgets), numbers=range(4))}"


def _spending(contents: Contents, drawn: bool) -> str:
    statement, budget = contents.statement, contents.statement.budget
    if not statement.private:
        return "<p>Everything: this release is not private.</p>"
    spent = contents.spending
    if spent[-1].releases == 1:
        return f"<p>One release, which costs ε = {statement.epsilon:.4g} of {budget.epsilon:.4g} at δ = {budget.delta:.3g}.</p>"
    words = (
        f"ε rises to {statement.epsilon:.4g} over {spent[-1].releases} releases, under a planned budget of {budget.epsilon:.4g} "
        f"at δ = {budget.delta:.3g}."
    )
    rows = [(str(one.releases), f"{one.epsilon:.4g}") for one in spent]
    table = pieces.table("ε after so many releases, each priced with all before it", ("Releases", "ε"), rows, numbers=(0, 1))
    plot = (
        [pieces.figure(draw_spending(spent, budget.epsilon, words), "Dashed: the planned budget.")]
        if drawn
        else [pieces.note(NO_PLOTS)]
    )
    return "\n".join(
        [f"<p>{pieces.text(words)}</p>", *plot, pieces.details("The numbers of the plot", table) if drawn else table]
    )


_HALF_RANGES = (
    "A number counts from −1 at the low end of its range to 1 at the high end, a category as 1 if it is the row's. So a "
    "coefficient says how much the score moves over half a range, or with a category."
)
_HATS = (
    "What a numeric column adds to the score is a curve of straight pieces. The coefficient “column at knot” is its height where "
    "the column is at that knot, and between two knots the curve is the line through their heights. One knot of each column is "
    "not listed: its height is 0. So compare the heights of one column with each other. The coefficient of a category says how "
    "much the score moves with it."
)


def _model(contents: Contents, drawn: bool) -> str:
    model, found = contents.model, contents.coefficients
    parts = [f"<p>{pieces.text(contents.kind[0].upper() + contents.kind[1:])}.</p>"]
    if model.classes:
        parts.append(f"<p>Classes: {pieces.text(', '.join(model.classes[:20]))}{' …' if len(model.classes) > 20 else ''}.</p>")
    if model.hidden:
        count = sum(weights.size + biases.size for weights, biases in (*model.hidden, (model.slopes, model.intercepts)))
        return "\n".join([*parts, f"<p>Its {count} parameters have no meaning one by one, so none is listed.</p>"])
    if model.encoding is not None:
        parts.append(f"<p>{_HATS if contents.hats else _HALF_RANGES}</p>")
    if contents.deviation_known:
        parts.append(
            f"<p>Noise was added once, and its size is known. An interval holds the coefficient before noise in "
            f"{COVERAGE:.0%} of all runs. It says nothing about the error from having few {_noun(contents)}s.</p>"
        )
    else:
        parts.append(f"<p>There are no intervals for the privacy noise. {pieces.text(contents.why_no_deviation)}</p>")
    slopes = [one for one in found if one.feature != "(intercept)" or one not in found[-len(model.intercepts) :]]
    if drawn and slopes:
        most = "All" if len(slopes) <= MOST_DRAWN else f"The {MOST_DRAWN} largest of"
        words = f"{most} {len(slopes)} coefficients" + (", with the interval of the noise." if contents.deviation_known else ".")
        parts.append(pieces.figure(draw_coefficients(slopes, words), words))
    elif not drawn:
        parts.append(pieces.note(NO_PLOTS))
    shown = [*slopes[:MOST_ROWS], *found[len(slopes) :][:MOST_ROWS]]
    several = bool(found[0].output)
    columns = [
        "Feature",
        *(["Class"] if several else []),
        "Coefficient",
        *(["Noise interval"] if contents.deviation_known else []),
    ]
    caption = "Coefficients, the largest first" + (f": {MOST_ROWS} of {len(slopes)}" if len(slopes) > MOST_ROWS else "")
    start = 2 if several else 1
    parts.append(
        pieces.table(caption, columns, [_row(one, several) for one in shown], numbers=(start, start + 1), tall=len(shown) > 15)
    )
    return "\n".join(parts)


def _row(one: Coefficient, several: bool) -> tuple[str, ...]:
    spread = [] if one.deviation is None else [one.value - DEVIATIONS * one.deviation, one.value + DEVIATIONS * one.deviation]
    return (
        one.feature,
        *([one.output] if several else []),
        f"{one.value:.4g}",
        *([f"{spread[0]:.4g} to {spread[1]:.4g}"] if spread else []),
    )


def _features(contents: Contents) -> str:
    if not contents.features:
        bounds = (contents.asked.get("settings") or {}).get("bounds")
        where = "declared" if bounds is not None else "estimated privately, inside this budget"
        return (
            f"<p>{len(contents.model.names)} columns of plain numbers without declared ranges of their own. The length of a row "
            f"was {where}.</p>"
        )
    rows = [tuple(feature) for feature in contents.features[:MOST_ROWS]]
    left = f": {MOST_ROWS} of {len(contents.features)}" if len(contents.features) > MOST_ROWS else ""
    parts = ["<p>Numbers outside a range are set to its nearer end. Categories that are not listed count as none.</p>"]
    parts += [pieces.table(f"Columns of the model{left}", ("Column", "Values", "Source"), rows, tall=len(rows) > 15)]
    if contents.ignored:
        parts.append(f"<p>Left out by the schema: {pieces.text(', '.join(contents.ignored))}.</p>")
    return "\n".join(parts)


def _settings(contents: Contents) -> str:
    rows = [(name, _number(value)) for name, value in contents.statement.settings.items()]
    return pieces.table("How the model was trained", ("Setting", "Value"), rows) if rows else "<p>None were recorded.</p>"


def _ledger(contents: Contents) -> str:
    statement = contents.statement
    rows = [(str(place), describe(entry.event), str(entry.count)) for place, entry in enumerate(contents.entries, start=1)]
    caption = f"Charges, each written before it was used{f': {MOST_ROWS} of {len(rows)}' if len(rows) > MOST_ROWS else ''}"
    parts = [] if statement.cap is None else [f"<p>{pieces.text(statement.cap[0].upper() + statement.cap[1:])}.</p>"]
    parts.append(pieces.table(caption, ("Charge", "Release", "Times"), rows[:MOST_ROWS], numbers=(2,), tall=len(rows) > 15))
    return "\n".join(parts)


def _reproducibility(contents: Contents) -> str:
    statement = contents.statement
    seed = (
        "fixed. It is not in this report: whoever knows it can remove the noise."
        if statement.seeded
        else "none. A second run draws other noise, gives another model and costs another budget."
    )
    facts = [
        ("Method", str(statement.settings.get("method", "unknown"))),
        ("Seed", seed),
        ("Noise", statement.noise or "from a seed"),
        ("Accountant", f"{choose(statement.event, statement.budget.neighbours, statement.accountant)} (dp-accounting)"),
        ("Ledger's newest hash", contents.newest or "unknown"),
        ("This page was written with", ", ".join(f"{name} {number}" for name, number in contents.versions.items())),
    ]
    entry = json.dumps(registry_entry(contents), indent=2, ensure_ascii=False)
    return "\n".join(
        [
            pieces.facts(facts),
            pieces.details("The statement, word for word", f"<pre>{pieces.lines(statement.text())}</pre>"),
            pieces.details("As an entry of a registry of deployments (JSON)", f"<pre>{pieces.lines(entry)}</pre>", printed=False),
        ]
    )


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
