"""Choosing ε before there is a run: what a model can expect and what an attacker can say, at each ε. No data are read.

The quality is that of a made-up task in which everything is known: rows are normal, all d columns matter equally and are
independent, and the answer is linear. Real tables differ, so its height is a guess; where it falls off, as ε shrinks, says
whether n is large enough for a budget.

The model is the noisy mean of y·x over all rows, which is where descent from 0 begins, in one release of the whole budget: a row
moves the sum by at most its typical length R, so each coordinate of the mean has noise of standard deviation R z/n beside the
sampling error. A test compares that with what the estimators reach on such data.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy.stats import norm

from privopt.privacy.budget import (
    ALMOST_SURE,
    Budget,
    describe_attacker,
    describe_strength,
    detection_rate,
    strongest_attacker,
)
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent
from privopt.report import pieces
from privopt.report.plots import NO_PLOTS, can_draw, draw_expected, draw_trade_off

Task = Literal["classify", "regress"]
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
BEST: dict[Task, float] = {"classify": 0.85, "regress": 0.6}  # what is possible without privacy, where nothing is known of it
MEASURES: dict[Task, str] = {"classify": "AUC", "regress": "R²"}
FALSE_ALARMS = 0.01
REACH = 2.0  # standard deviations: how far from its mean a target counts, where the estimators were compared with this


@dataclass(frozen=True)
class Choice:
    """What goes with an ε: the quality to expect, and the most that an attacker can do."""

    epsilon: float
    expected: float
    success: float  # of a guess whether somebody took part, where a fair coin decided that
    advantage: float  # true minus false positive rate
    detected: float  # of those who took part, at a false positive rate of FALSE_ALARMS
    strength: str

    def to_json(self) -> dict[str, Any]:
        """The numbers by name."""
        return asdict(self)


def compare_epsilons(n: int, d: int, budget: Budget, *, task: Task = "classify", best: float | None = None) -> list[Choice]:
    """Compare usual ε, and the budget's own, for so many rows (or persons) and parameters."""
    expect = expected_auc if task == "classify" else expected_r2
    found = []
    for epsilon in sorted({*EPSILONS, budget.epsilon}):
        noise = calibrate(GaussianDpEvent, Budget(epsilon, budget.delta, budget.neighbours))
        attacker = strongest_attacker(epsilon, budget.delta)
        found.append(
            Choice(
                epsilon,
                expect(n, d, noise, BEST[task] if best is None else best),
                attacker.success,
                attacker.advantage,
                detection_rate(epsilon, budget.delta, FALSE_ALARMS),
                describe_strength(epsilon),
            )
        )
    return found


def expected_auc(n: int, d: int, noise_multiplier: float, best: float) -> float:
    """The AUC of a private classifier of two equally frequent classes, where `best` is possible without privacy.

    Rows are N(±m u, I), ‖u‖ = 1, so the best AUC is Φ(√2 m). A direction at an angle with u has AUC Φ(√2 m cos), and
    cos² = m² / (m² + d/n + d (R z/n)²), R² = m² + d.

    >>> [round(expected_auc(2000, 20, z, 0.85), 3) for z in (0.0, 4.0, 40.0, 400.0)]
    [0.848, 0.847, 0.816, 0.573]
    """
    reach = norm.ppf(best)  # √2 m
    signal = reach**2 / 2
    error = d / n + d * (signal + d) * (noise_multiplier / n) ** 2
    return float(norm.cdf(reach * math.sqrt(signal / (signal + error))))


def expected_r2(n: int, d: int, noise_multiplier: float, best: float) -> float:
    """The R² of a private regression, where `best` is possible without privacy.

    Rows are N(0, I), y = ⟨w, x⟩ + noise has variance 1, so the best R² is ‖w‖². An estimate w + e, shrunk as far as is best,
    has R² ‖w‖² · ‖w‖² / (‖w‖² + E‖e‖²), with E‖e‖² = d/n + d (R z/n)², R² = 4 d.

    >>> [round(expected_r2(2000, 20, z, 0.6), 3) for z in (0.0, 4.0, 40.0, 400.0)]
    [0.59, 0.584, 0.288, 0.006]
    """
    error = d / n + d * REACH**2 * d * (noise_multiplier / n) ** 2
    return best * best / (best + error)


# ---------------------------------------------------------------- as a page


def render_plan(choices: Sequence[Choice], budget: Budget, n: int, d: int, task: Task, best: float, *, plots: bool = True) -> str:
    """A page to choose ε by, with its plots if matplotlib is installed."""
    measure, drawn = MEASURES[task], plots and can_draw()
    quality = (
        f"With {n} rows (or persons) and {d} parameters, in a made-up task: independent columns that matter equally, and a best "
        f"{measure} of {best:g} without privacy. Real tables differ: believe where the curve falls off, not its height."
    )
    attack = (
        "The strongest attacker who fits each ε, and knows everything but whether one person took part. Real attacks may do far "
        "worse, none can do better."
    )
    curves = [(one.epsilon, budget.delta) for one in choices]
    sections = (
        (
            "meaning",
            f"What ε = {budget.epsilon:g} means",
            f"<p>{pieces.text(describe_attacker(budget.epsilon, budget.delta))}</p>",
        ),
        (
            "quality",
            "What a model can expect",
            _plot(drawn, lambda: draw_expected(choices, budget.epsilon, best, measure, quality), quality)
            + pieces.table(
                "Expected quality at each ε",
                ("ε", measure, "How strong ε is"),
                [(f"{one.epsilon:g}", f"{one.expected:.3f}", one.strength) for one in choices],
                numbers=(0, 1),
            ),
        ),
        (
            "attacker",
            "What an attacker can say",
            _plot(drawn, lambda: draw_trade_off(curves, budget.epsilon, attack), attack)
            + pieces.table(*attacker_table(curves), numbers=range(4)),
        ),
    )
    facts = [("Rows, or persons", str(n)), ("Parameters", str(d)), ("Budget", str(budget)), ("Predicts", _KINDS[task])]
    return pieces.page(
        "Choosing ε", pieces.facts(facts), sections, "It is made from the numbers above. No data were read for it."
    )


_KINDS: dict[Task, str] = {"classify": "classes", "regress": "a number"}


def attacker_table(budgets: Sequence[tuple[float, float]]) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Caption, columns and rows of a table of what an attacker can say at each (ε, δ)."""
    rows = list[tuple[str, ...]]()
    for epsilon, delta in budgets:
        attacker, detected = strongest_attacker(epsilon, delta), detection_rate(epsilon, delta, FALSE_ALARMS)
        rows.append((f"{epsilon:.4g}", percent(attacker.success), f"{attacker.advantage:.3f}", percent(detected)))
    columns = ("ε", "Right guesses (of a fair coin)", "Membership advantage", f"Recognised, at {FALSE_ALARMS:.0%} false alarms")
    return "The most that an attacker can do", columns, rows


def percent(share: float) -> str:
    """A probability in percent; one that rounds to certainty is none.

    >>> percent(0.731), percent(0.99995)
    ('73.1 %', '> 99.9 %')
    """
    return f"{100 * share:.1f} %" if share < ALMOST_SURE else "> 99.9 %"


def _plot(drawn: bool, draw: Any, words: str) -> str:
    return pieces.figure(draw(), words) if drawn else f"<p>{pieces.text(words)}</p>{pieces.note(NO_PLOTS)}"
