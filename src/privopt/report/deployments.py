"""Entries for the registry of differential privacy deployments that OpenDP keeps and NIST proposes to host.

The fields are those of its schema (schemas/deployments-schema.yaml of opendp/deployments-registry-data, 2026). What only the
people behind a deployment know, such as its purpose, stands as `TO_FILL_IN`.
"""

import re
from typing import Any

from privopt import __version__
from privopt.privacy.accountants import choose
from privopt.privacy.budget import UNITS, describe_neighbours
from privopt.privacy.events import atoms, describe
from privopt.report.contents import Contents

TO_FILL_IN = "(to fill in)"


def registry_entry(contents: Contents) -> dict[str, Any]:
    """The run as an entry of the registry, which a curator completes.

    Every number comes from the statement, whose ε is computed from what was recorded. A run without a guarantee has no privacy
    parameters, and its entry says so.
    """
    statement, budget = contents.statement, contents.statement.budget
    slug = re.sub(r"[^a-z0-9]+", "-", f"{contents.target} {contents.data_name}".lower()).strip("-")
    done = [f"{count} × {describe(part)}" for part, count in atoms(statement.event)]
    return {
        "url_slug": slug or "model",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": f"A model of {contents.target}, from {contents.data_name}",
                "data_curators": [TO_FILL_IN],
                "intended_use": TO_FILL_IN,
                "data_product_type": "Machine learning model",
                "data_product_region": TO_FILL_IN,
                "description": f"{contents.kind[0].upper()}{contents.kind[1:]}. Released: {statement.released}.",
                "publication_date": contents.date,
            },
            "dp_variant": {
                "variant_name": _variant(contents),
                "data_domain": _domain(contents),
                "unprotected_quantities": "; ".join([*statement.assumed_public, *statement.public_data]) or "none",
            },
            "privacy_loss": {
                "privacy_unit": UNITS[budget.unit],
                "privacy_unit_details": f"Adjacent data sets: {describe_neighbours(budget.neighbours, budget.unit)}.",
                "privacy_parameters": {"epsilon": statement.epsilon, "delta": budget.delta} if statement.private else {},
                "privacy_parameters_details": _parameters(contents),
            },
            "deployment_model": {
                "model_name": "Federated" if contents.federated else "Central",
                "actors": _actors(contents),
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Everything after the noisy answers: update rules, the choice of the iterate, scaling back.",
                "composition": f"{choose(statement.event, budget.neighbours, statement.accountant)} accountant of dp-accounting"
                + ("" if statement.cap is None else f"; ledger with {statement.cap}"),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "; ".join(
                    [
                        *(f"estimated privately, inside the budget: {item}" for item in statement.paid_for),
                        *statement.not_covered[1:4],
                    ]
                ),
                "mechanisms": f"privopt {__version__}, method {statement.settings.get('method', 'unknown')}: {'; '.join(done)}. "
                f"Noise: {statement.noise or 'from a fixed seed, for tests only'}.",
                "justification": TO_FILL_IN,
            },
            "administrative": {
                "notes": "Not covered: " + "; ".join(statement.not_covered),
                "registry_authors": [TO_FILL_IN],
            },
        },
    }


def _variant(contents: Contents) -> str:
    if not contents.statement.private:
        return "Custom"
    return "Approximate DP" if contents.statement.budget.delta else "Pure DP"


def _domain(contents: Contents) -> str:
    statement = contents.statement
    noun = "rows" if statement.budget.unit == "example" else f"{statement.budget.unit}s"
    size = "" if statement.examples is None else f", {statement.examples} {noun} (a public number)"
    return f"Tables like {contents.data_name}{size}"


def _parameters(contents: Contents) -> str:
    statement = contents.statement
    if not statement.private:
        return "No guarantee: this release is not private."
    seeded = " The noise came from a fixed seed: for tests only." if statement.seeded else ""
    return f"Planned budget: ε = {statement.budget.epsilon:.4g}; ε is computed from what was recorded.{seeded}"


def _actors(contents: Contents) -> str:
    if not contents.federated:
        return (
            "Curator: holds the rows, runs privopt, and is trusted with both. Whoever has the model, and all else that was "
            "released, is not trusted."
        )
    adder = contents.statement.settings.get("noise added by", "the server")
    return (
        "Nodes: hold the rows of their users, and are trusted with them. Server: sees sums of clipped changes of the model, and "
        f"is trusted to follow the protocol. Noise is added by {adder}. Whoever has the model is not trusted."
    )
