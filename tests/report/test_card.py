"""Model cards, and entries for the registry of deployments."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privopt.privacy.events import NonPrivateDpEvent
from privopt.report import Contents, registry_entry, write_card
from privopt.report.deployments import TO_FILL_IN
from privopt.runs.folder import RunFolder
from tests.cli.typed import privopt
from tests.report.finished import EVIL, SCRIPT, train_evil, train_patients

# Fields of schemas/deployments-schema.yaml of opendp/deployments-registry-data at 3e9c812, where nothing else is allowed.
FIELDS: dict[str, set[str]] = {
    "basic": {
        "name", "data_curators", "intended_use", "data_product_type", "data_product_region", "description", "publication_date",
        "data_product_sector",
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {"privacy_unit", "privacy_unit_details", "privacy_parameters", "privacy_parameters_details"},
    "deployment_model": {
        "model_name", "model_name_details", "actors", "release_type", "release_type_details", "data_source_type",
        "data_source_type_details", "access_type", "access_type_details",
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"},
    "administrative": {"sources", "notes", "registry_authors"},
}  # fmt: skip
REQUIRED = FIELDS["basic"] - {"data_product_sector"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_patients(tmp_path_factory.mktemp("patients"))


def test_an_entry_has_the_registrys_fields_and_the_statements_numbers(finished: RunFolder) -> None:
    entry = json.loads(privopt("card", finished.path, "--json"))
    assert entry == json.loads(json.dumps(registry_entry(Contents.of(finished))))
    assert set(entry) == {"url_slug", "status", "tier", "deployment"}
    deployment: dict[str, Any] = entry["deployment"]
    assert set(deployment) == set(FIELDS)
    for part, fields in FIELDS.items():
        assert set(deployment[part]) <= fields
    assert set(deployment["basic"]) >= REQUIRED
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", deployment["basic"]["publication_date"])
    statement = finished.statement()
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": statement.epsilon, "delta": statement.budget.delta}
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["deployment_model"]["model_name"] == "Central"
    for item in statement.assumed_public:
        assert item in deployment["dp_variant"]["unprotected_quantities"]
    assert deployment["basic"]["intended_use"] == TO_FILL_IN  # which nobody but the curator knows


def test_an_entry_without_a_guarantee_claims_no_parameters(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    contents = replace(contents, statement=replace(contents.statement, event=NonPrivateDpEvent()))
    loss = registry_entry(contents)["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {}
    assert "NO GUARANTEE" in write_card(contents)


def test_a_federation_says_who_is_trusted(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    entry = registry_entry(replace(contents, asked={**contents.asked, "federation": True}))
    assert entry["deployment"]["deployment_model"]["model_name"] == "Federated"
    assert "added by the server" in entry["deployment"]["deployment_model"]["actors"]


def test_the_command_writes_a_card_and_never_over_one(finished: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "card.md"
    assert "Model card" in privopt("card", finished.path, "--out", file)
    card = file.read_text()
    assert f"ε = {finished.statement().epsilon:.4g}" in card
    for heading in ("Model details", "Intended use", "Training data", "Privacy", "Quality", "Limits and risks"):
        assert f"## {heading}" in card
    file.write_text("filled in")
    assert "exists already" in privopt("card", finished.path, "--out", file, code=2)
    assert file.read_text() == "filled in"
    assert privopt("card", finished.path).endswith("model_card.md")


def test_names_from_outside_are_text_in_a_card(tmp_path: Path) -> None:
    card = write_card(Contents.of(train_evil(tmp_path)))
    assert SCRIPT not in card
    assert EVIL not in card
    assert "\x1b" not in card
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in rows)
