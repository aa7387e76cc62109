"""Statements: the guarantee in words, which can be checked against the ledger."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from privopt.errors import InputError
from privopt.escaping import printable
from privopt.privacy.accountants import Accountant, choose, epsilon
from privopt.privacy.budget import UNITS, Budget, cautions, describe_neighbours
from privopt.privacy.events import DpEvent, atoms, describe, from_json, to_json
from privopt.privacy.ledger import Ledger

NO_GUARANTEE = "This release has NO GUARANTEE: it is not private (ε = inf). Whoever has it may learn anything about any example."
SEVERAL_UNITS = "people with several {unit}s: the guarantee is for one {unit}, and weaker for all {unit}s of a person"
SEVERAL_IDS = "people who have rows under several ids: the guarantee is for the rows of one id"
NOT_COVERED = (
    "steps before this one that look at the data: scalers, encoders, feature selection, imputation",
    "what is read off the data for free: the classes, the task and column types, unless declared; that an error was raised",
    "choosing settings or methods by looking at results on these data",
    "scores measured on these data and shown to anyone (they are releases of their own)",
    "floating-point side channels of the noise, and the time that training took",
)


@dataclass(frozen=True)
class Statement:
    """What was released, what it costs at most, and what the claim does not cover.

    **Guarantee** `epsilon` is what the accountant computes from `event`, the record of what was done; it is at most
    `budget.epsilon` when the run was planned with that budget.
    """

    budget: Budget
    event: DpEvent
    released: str
    accountant: Accountant = "auto"
    examples: int | None = None  # how many there were, if that is public
    assumed_public: Sequence[str] = ()
    paid_for: Sequence[str] = ()
    public_data: Sequence[str] = ()
    assumed: Sequence[str] = ()  # checked, but not proved
    beside: Sequence[str] = ()  # other releases, perhaps about the same people, that this claim does not include
    cap: str | None = None  # the cap of the ledger that was charged, and how it is enforced
    noise: str | None = None  # the source of its random numbers, if not a seed
    seeded: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def epsilon(self) -> float:
        """The ε of what was done, at the budget's δ."""
        return epsilon(self.event, self.budget.delta, self.budget.neighbours, accountant=self.accountant)

    @property
    def private(self) -> bool:
        """Whether there is a guarantee at all."""
        return self.epsilon < math.inf

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the claim says nothing about."""
        if self.budget.unit == "person":
            return SEVERAL_IDS, *self.beside, *NOT_COVERED
        unit = "row" if self.budget.unit == "example" else self.budget.unit
        return SEVERAL_UNITS.format(unit=unit), *self.beside, *NOT_COVERED

    def __call__(self) -> "Statement":
        """Itself: `privacy.statement()` and `privacy.statement` are the same."""
        return self

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The guarantee in words."""
        if self.private:
            claim = [
                f"This release is (ε = {self.epsilon:.4g}, δ = {self.budget.delta:.3g})-differentially private.",
                f"Unit: {UNITS[self.budget.unit]}. Planned budget: ε = {self.budget.epsilon:.4g}.",
                f"Neighbours: {describe_neighbours(self.budget.neighbours, self.budget.unit)}.",
            ]
            if self.examples is not None:
                claim += [f"CAUTION: {caution}" for caution in cautions(self.budget.delta, self.examples, self.budget.unit)]
        else:
            claim = [NO_GUARANTEE]
        lines = [
            *claim,
            f"Released: {printable(self.released)}.",
            "What was done:",
            *(f"  - {count} × {describe(part)}" for part, count in atoms(self.event)),
            f"Accountant: {choose(self.event, self.budget.neighbours, self.accountant)} (dp-accounting).",
        ]
        if self.noise is not None and self.private:
            lines.append(f"Noise: {self.noise}.")
        if self.cap is not None:
            lines.append(f"Ledger: {printable(self.cap)}.")
        for title, items in (
            ("Taken as public", self.assumed_public),
            ("Estimated privately, inside this budget", self.paid_for),
            ("Public data used", self.public_data),
            ("Assumed (checked, but not proved)", self.assumed),
            ("Not covered", self.not_covered),
        ):
            if items:
                lines += [f"{title}:", *(f"  - {printable(item)}" for item in items)]
        if self.settings:
            lines += ["Settings:", *(f"  - {printable(f'{name}: {_format(value)}')}" for name, value in self.settings.items())]
        if self.seeded:
            lines.append(
                "WARNING: the noise came from a fixed seed. Whoever knows the seed can remove the noise: for tests only."
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The statement as JSON; `from_json` reads it back."""
        return {
            "epsilon": self.epsilon if self.private else None,
            "unit": UNITS[self.budget.unit],
            "neighbours": describe_neighbours(self.budget.neighbours, self.budget.unit),
            "budget": asdict(self.budget),
            "event": to_json(self.event),
            "released": self.released,
            "accountant": self.accountant,
            "examples": self.examples,
            "assumed_public": list(self.assumed_public),
            "paid_for": list(self.paid_for),
            "public_data": list(self.public_data),
            "assumed": list(self.assumed),
            "cap": self.cap,
            "noise": self.noise,
            "seeded": self.seeded,
            "settings": dict(self.settings),
            **({"beside": list(self.beside)} if self.beside else {}),
            "not_covered": list(self.not_covered),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Statement":
        """Read what `to_json` wrote; ε is computed anew, not trusted."""
        match value:
            case {
                "budget": {**_budget},
                "event": {**_event},
                "released": str(),
                "accountant": "auto" | "pld" | "rdp",
                "examples": int() | None as examples,
                "cap": str() | None,
                "seeded": bool(),
                "settings": {**_settings},
            } if examples is None or examples >= 1:
                pass
            case _:
                raise InputError("an entry is missing, or has the wrong type.")
        for name in ("assumed_public", "paid_for", "public_data", "assumed", *(["beside"] if "beside" in value else [])):
            if not isinstance(value.get(name), list) or not all(isinstance(item, str) for item in value[name]):
                raise InputError(f"{name} is not a list of strings.")
        return cls(
            budget=Budget(**value["budget"]),
            event=from_json(value["event"]),
            beside=value.get("beside", ()),
            **{
                name: value[name]
                for name in (
                    "released",
                    "accountant",
                    "examples",
                    "assumed_public",
                    "paid_for",
                    "public_data",
                    "assumed",
                    "cap",
                    "noise",
                    "seeded",
                    "settings",
                )
            },
        )

    def to_html(self) -> str:
        """The statement as an HTML page."""
        return _PAGE.format(
            claim=f"ε = {self.epsilon:.4g}, δ = {self.budget.delta:.3g}" if self.private else "no guarantee: not private",
            text=html.escape(self.text()),
            data=html.escape(json.dumps(self.to_json(), indent=2)),
        )


@dataclass(frozen=True)
class Privacy:
    """The statement of a model, and the ledger that was charged for it."""

    statement: Statement
    ledger: Ledger

    def __str__(self) -> str:
        return str(self.statement)


def _format(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Privacy statement</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 3rem auto; padding: 0 1rem; color: #1b1f24 }}
h1 {{ font-size: 1.4rem }} .claim {{ font-size: 2rem; color: #0b5cad }}
pre {{ white-space: pre-wrap; background: #f5f7f9; padding: 1rem; border-radius: 6px; font-size: .85rem }}
</style>
<h1>Privacy statement</h1>
<p class="claim">{claim}</p>
<pre>{text}</pre>
<details><summary>The same as JSON</summary><pre>{data}</pre></details>
</html>
"""
