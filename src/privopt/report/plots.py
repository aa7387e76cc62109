"""Plots as inline SVG, drawn by matplotlib, which is an extra: without it there are none.

The same numbers give the same bytes. Colours are those of the page (`currentColor` and its variables), so that a plot is readable
on a light and on a dark background; its labels are text, in the page's font.
"""

import html
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from privopt.escaping import printable
from privopt.privacy.budget import detection_rate
from privopt.report.contents import DEVIATIONS, Coefficient, Spent

if TYPE_CHECKING:
    from privopt.report.planning import Choice

INK, ACCENT, FAINT = "#010203", "#040506", "#070809"  # stand for colours of the page
COLOURS = {INK: "currentColor", ACCENT: "var(--accent)", FAINT: "var(--line)"}
WIDTH = 4.8  # inches, of 72 points
MOST_DRAWN, MOST_LETTERS = 20, 22
NO_PLOTS = "There is no plot: matplotlib is not installed. Install it (pip install 'privopt[report]'), and write this page again."


def can_draw() -> bool:
    """Whether matplotlib is installed, and works."""
    with _quietly():
        try:
            import matplotlib.figure
        except ImportError:
            return False
    return bool(matplotlib.figure)


def draw_spending(spent: Sequence[Spent], planned: float, title: str) -> str:
    """ε against the number of releases, under the planned budget."""
    with _quietly():
        return _finish(_spending(spent, planned), title, "spending")


def draw_coefficients(coefficients: Sequence[Coefficient], title: str) -> str:
    """The largest coefficients, as bars from 0, with the interval of their noise where it is known."""
    with _quietly():
        return _finish(_coefficients(coefficients[:MOST_DRAWN][::-1]), title, "coefficients")


def draw_trade_off(budgets: Sequence[tuple[float, float]], chosen: float, title: str) -> str:
    """Who is recognised at most against who is accused falsely, at each (ε, δ); that of the chosen ε stands out."""
    with _quietly():
        return _finish(_trade_off(budgets, chosen), title, "trade-off")


def draw_expected(choices: Sequence["Choice"], chosen: float, best: float, measure: str, title: str) -> str:
    """The quality to expect against ε, below the best that is possible without privacy."""
    with _quietly():
        return _finish(_expected(choices, chosen, best, measure), title, "expected")


def _trade_off(budgets: Sequence[tuple[float, float]], chosen: float) -> Any:
    figure, axes = _start(3.4)
    alarms = [step / 200 for step in range(201)]
    styles = ((0, (1, 1)), (0, (3, 2)), (0, (6, 2)), (0, (6, 2, 1, 2)), (0, (1, 3)), (0, (3, 1, 1, 1)))
    for place, (epsilon, delta) in enumerate(budgets):
        style: dict[str, Any] = {"color": ACCENT, "linewidth": 2.5} if epsilon == chosen else {"color": INK, "linewidth": 1.1}
        style |= {} if epsilon == chosen else {"linestyle": styles[place % len(styles)]}
        axes.plot(alarms, [detection_rate(epsilon, delta, one) for one in alarms], label=f"ε = {epsilon:.3g}", **style)
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.5, label="guessing")
    axes.legend(loc="lower right", frameon=False, fontsize=9, labelcolor=INK)
    axes.set(xlabel="accused falsely (of those who took no part)", ylabel="recognised, at most", xlim=(0, 1), ylim=(0, 1.02))
    return figure


def _expected(choices: Sequence["Choice"], chosen: float, best: float, measure: str) -> Any:
    figure, axes = _start(2.7)
    axes.axhline(best, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(choices[0].epsilon, best, "not private", color=INK, ha="left", va="bottom", fontsize=9)
    axes.plot([one.epsilon for one in choices], [one.expected for one in choices], color=ACCENT, linewidth=2, marker="o")
    for one in choices:
        if one.epsilon == chosen:
            axes.plot([chosen], [one.expected], color=ACCENT, marker="o", markersize=10)
    axes.set_xscale("log")
    axes.set_xticks([one.epsilon for one in choices], labels=[f"{one.epsilon:g}" for one in choices])
    axes.minorticks_off()
    low = 0.5 if measure == "AUC" else 0.0
    axes.set(xlabel="ε", ylabel=f"expected {measure}", ylim=(low, best + 0.12 * (best - low)))
    return figure


def _spending(spent: Sequence[Spent], planned: float) -> Any:
    figure, axes = _start(2.7)
    axes.axhline(planned, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(spent[-1].releases, planned * 1.02, "planned budget", color=INK, ha="right", va="bottom", fontsize=9)
    axes.plot(
        [one.releases for one in spent], [one.epsilon for one in spent], color=ACCENT, linewidth=2, marker="o", markersize=4
    )
    axes.set(xlabel="releases so far", ylabel="ε spent", xlim=(0, spent[-1].releases * 1.02), ylim=(0, planned * 1.15))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _coefficients(shown: Sequence[Coefficient]) -> Any:
    figure, axes = _start(0.8 + 0.24 * len(shown))
    places = range(len(shown))
    spread = None if shown[0].deviation is None else [DEVIATIONS * (one.deviation or 0.0) for one in shown]
    style = {"ecolor": INK, "error_kw": {"elinewidth": 1.2, "capsize": 3}} if spread else {}
    axes.barh(places, [one.value for one in shown], xerr=spread, height=0.62, color=ACCENT, **style)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(places, labels=[_label(one) for one in shown])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)  # a name may hold $
    axes.set(xlabel="coefficient", ylim=(-0.7, len(shown) - 0.3))
    axes.grid(visible=False, axis="y")
    return figure


def _label(one: Coefficient) -> str:
    name = printable(one.feature) + (f" → {printable(one.output)}" if one.output else "")
    return name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 1] + "…"


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence matplotlib about its font cache, and about letters that its font lacks: the page uses fonts of its own."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _start(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=9)
    axes.xaxis.label.set(color=INK, fontsize=9.5)
    axes.yaxis.label.set(color=INK, fontsize=9.5)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _finish(figure: Any, title: str, name: str) -> str:
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"privopt {name}"}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(written.getvalue(), title, name)


def _inline(svg: str, title: str, name: str) -> str:
    """A stand-alone SVG as a part of a page: without header, metadata and ids that two plots would share."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)  # comments repeat the text of labels
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, variable)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    opening = f'<svg class="plot" {box[0]} role="img" aria-labelledby="{name}-title" xmlns:xlink="http://www.w3.org/1999/xlink">'
    body = svg[svg.index(">") + 1 :]
    return f'{opening}<title id="{name}-title">{html.escape(title)}</title>{body.strip()}'
