"""The page of a report: what it says, that nothing on it is foreign, and that writing it cannot hurt a run."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from privopt.errors import InputError, PrivoptWarning
from privopt.privacy.budget import Budget
from privopt.privacy.events import LaplaceDpEvent, NonPrivateDpEvent
from privopt.report import Contents, render_page, try_report, write_card, write_report
from privopt.runs.folder import RunFolder
from tests.cli.typed import privopt
from tests.hostile.commands import start
from tests.problems import PATIENTS, patients
from tests.report.finished import EVIL, SCRIPT, Page, train_evil, train_once_hidden, train_patients

DRAWN = [False, pytest.param(True, marks=pytest.mark.skipif(not find_spec("matplotlib"), reason="matplotlib is an extra"))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_patients(tmp_path_factory.mktemp("patients"))


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_evil(tmp_path_factory.mktemp("evil"))


def words(page: Page) -> str:
    return " ".join(page.text.split())


def test_the_claim_comes_first_in_plain_words(finished: RunFolder) -> None:
    said = words(Page(render_page(Contents.of(finished))))
    claim = f"ε = {finished.statement().epsilon:.4g}, δ = 1e-05"
    order = [claim, "What is protected", "For whom", "How sure", "What is not covered", "How good the model is", "What was spent"]
    order += ["The model", "Features, and", "Settings", "Ledger", "Reproducibility"]
    places = [said.index(part, said.index(claim)) for part in order[1:-5]]
    assert places == sorted(places)
    assert all(part in said for part in order)
    assert "patients.csv" in said
    assert "one example (row)" in said
    assert re.search(r"Date\s*20\d\d-\d\d-\d\d", said)
    for item in finished.statement().not_covered:
        assert item in said


def test_the_folders_of_the_machine_are_not_on_the_page(finished: RunFolder) -> None:
    assert str(finished.path.parent) not in render_page(Contents.of(finished))


def test_a_seed_is_mentioned_and_not_told(evil: RunFolder) -> None:
    contents = Contents.of(evil)
    contents = replace(contents, asked={**contents.asked, "seed": 987654321})
    page = render_page(contents)
    assert "this run is for tests only" in page
    assert "987654321" not in page


def test_a_release_without_a_guarantee_says_so_and_claims_nothing(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    page = words(Page(render_page(replace(contents, statement=replace(contents.statement, event=NonPrivateDpEvent())))))
    assert "NO GUARANTEE" in page
    assert "times of 100" not in page
    assert "How sure that" not in page


@pytest.mark.parametrize("drawn", DRAWN)
def test_names_from_outside_are_text(evil: RunFolder, drawn: bool) -> None:
    text = render_page(Contents.of(evil), plots=drawn)
    page = Page(text)
    assert not page.all("script")
    assert SCRIPT in page.text
    assert "\x1b" not in text
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert EVIL in Contents.of(evil).model.classes


@pytest.mark.parametrize("drawn", DRAWN)
def test_the_page_is_complete_in_itself(evil: RunFolder, drawn: bool) -> None:
    text = render_page(Contents.of(evil), plots=drawn)
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "embed", "img", "base", "form"), tag
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)
    assert page.all("html")[0]["lang"] == "en"
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))


@pytest.mark.parametrize("drawn", DRAWN)
def test_headings_are_in_order_and_ids_are_unique(finished: RunFolder, drawn: bool) -> None:
    page = Page(render_page(Contents.of(finished), plots=drawn))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert ids.most_common(1)[0][1] == 1
    for _, attributes in page.elements:  # links and labels lead somewhere
        for target in (
            attributes.get("aria-labelledby"),
            (attributes.get("href") or "")[1:],
            (attributes.get("xlink:href") or "")[1:],
        ):
            assert not target or target in ids


def test_tables_can_be_read_aloud_and_scrolled_by_keys(finished: RunFolder) -> None:
    page = Page(render_page(Contents.of(finished)))
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) >= 5
    boxes = [box for box in page.all("div") if "scroll" in (box.get("class") or "")]
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)
    assert len(boxes) == len(page.all("table"))


@pytest.mark.skipif(not find_spec("matplotlib"), reason="matplotlib is an extra")
def test_plots_have_titles_take_the_pages_colours_and_are_the_same_every_time(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    text = render_page(contents)
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        assert 'role="img"' in plot
        assert re.search(r"<title id=\"[\w-]+\">.+</title>", plot)
        assert "var(--accent)" in plot
        assert "currentColor" in plot
        assert not re.search(r"#[0-9a-f]{6}\b", re.sub(r'(?:href|clip-path|id)="[^"]*"', "", plot))
    assert render_page(Contents.of(finished)) == text


def test_the_accountant_is_named_and_who_it_protects_from_is_said(finished: RunFolder) -> None:
    text = Page(render_page(Contents.of(finished))).text
    assert "pld (dp-accounting)" in text
    assert "auto (dp-accounting)" not in text
    assert "What an attacker can say" in text
    assert "Recognised, at 1% false alarms" in text


def test_without_matplotlib_there_are_tables_and_a_word_about_it(finished: RunFolder) -> None:
    text = render_page(Contents.of(finished), plots=False)
    assert "<svg" not in text
    assert "matplotlib is not installed" in text
    assert len(Page(text).all("table")) >= 5


def evaluation(folder: RunFolder) -> dict[str, Any]:
    """As `privopt evaluate` leaves it."""
    event = LaplaceDpEvent(5.0)
    statement = replace(
        folder.statement(), event=event, budget=Budget(0.2), released="noisy sums", seeded=False, noise="a source"
    )
    numbers = {"accuracy": {"value": 0.81234, "low": 0.79, "high": 0.83}, SCRIPT: {"value": 1.5, "low": None, "high": None}}
    return {
        "format": "privopt-evaluation-1",
        "model": str(folder.path),
        "file": "held_out.csv",
        "size": 500,
        "confidence": 0.95,
        "numbers": numbers,
        "statement": statement.to_json(),
        "classes": ["no", "yes"],
        "confusion": [[210.2, 40.1], [51.0, 199.0], [0.4, -1.2]],
    }


def test_evaluations_in_the_folder_are_shown_with_what_they_cost(tmp_path: Path) -> None:
    folder = train_once_hidden(tmp_path / "rows.csv", tmp_path / "run", 0)
    assert "Nothing was measured" in render_page(Contents.of(folder))
    found = evaluation(folder)
    (folder.path / "evaluation.json").write_text(json.dumps(found))
    (folder.path / "evaluation-2.json").write_text(json.dumps(found | {"file": "later.csv"}))
    text = write_report(folder).read_text()
    page = words(Page(text))
    assert "0.79 to 0.83" in page
    assert "−∞ to ∞" in page
    assert "500 rows of held_out.csv (evaluation.json). This cost ε = 0.2, δ = 0" in page
    assert page.index("held_out.csv") < page.index("later.csv") < page.index("What was spent")
    assert SCRIPT in page
    assert str(tmp_path) not in text
    assert "0.8123" in write_card(Contents.of(folder))


@pytest.mark.parametrize("damage", ["[1", "[]", "{}", '{"size": 1, "confidence": 1, "numbers": [], "statement": {}}'])
def test_a_damaged_evaluation_is_named(tmp_path: Path, damage: str) -> None:
    folder = train_once_hidden(tmp_path / "rows.csv", tmp_path / "run", 0)
    (folder.path / "evaluation.json").write_text(damage)
    with pytest.raises(InputError, match=r"evaluation\.json is damaged"):
        write_report(folder)


def test_coefficients_of_hats_are_explained_as_heights(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    assert contents.hats == any(" at " in name for name in contents.model.names)
    curved, straight = ({True: "its height where", False: "over half a range"}[one] for one in (contents.hats, not contents.hats))
    said = words(Page(render_page(contents)))
    assert curved in said
    assert straight not in said


def test_intervals_stand_where_the_noise_is_known_and_a_reason_where_not(tmp_path: Path, finished: RunFolder) -> None:
    known = words(Page(render_page(Contents.of(train_once_hidden(tmp_path / "rows.csv", tmp_path / "run", 0)))))
    assert "Noise interval" in known
    other = words(Page(render_page(Contents.of(finished))))
    assert "Noise interval" not in other
    assert "There are no intervals for the privacy noise. Noise was added in many rounds" in other


# ---------------------------------------------------------------- writing it


def test_commands_leave_a_report_and_make_it_again(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv"), tmp_path / "run"
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    asked = ("train", file, "--target", "readmitted", "--epsilon", 1, "--schema", tmp_path / "schema.json", "--out", run)
    assert "report.html opens in a browser" in privopt(*asked)
    first = (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert "statement.html opens" in privopt("show", run)  # which changes no folder
    privopt("train", "--resume", run)
    assert (run / "report.html").read_text() == first
    (run / "report.html").write_text("old")
    assert "The report is in" in privopt("show", run, "--html")
    assert (run / "report.html").read_text() == first
    assert math.isclose(json.loads(privopt("show", run, "--json"))["spent"], 1.0, rel_tol=0.01)


def test_a_run_without_a_model_has_no_report(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": "privopt-run-1"}')
    assert "unfinished" in privopt("show", tmp_path, "--html", code=2)
    assert not (tmp_path / "report.html").exists()


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    folder = train_once_hidden(tmp_path / "rows.csv", tmp_path / "run", 0)
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    (folder.path / "report.html").mkdir()
    (folder.path / ".report.html.new").mkdir()
    with pytest.warns(PrivoptWarning, match=r"report was not written.*model and the statement are complete"):
        try_report(folder)
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


def test_a_bug_of_the_report_is_a_warning_that_quotes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = train_once_hidden(tmp_path / "rows.csv", tmp_path / "run", 0)

    def broken(contents: Contents) -> str:
        raise ValueError("secret")

    monkeypatch.setattr("privopt.report.page.render_page", broken)
    with pytest.warns(PrivoptWarning, match="ValueError") as caught:
        try_report(folder)
    assert "secret" not in str(caught[0].message)


def test_a_disk_that_is_full_after_the_model_costs_the_report_only(tmp_path: Path) -> None:
    file, run = patients(tmp_path / "patients.csv"), tmp_path / "run"
    (tmp_path / "schema.json").write_text(json.dumps(PATIENTS.to_json()))
    asked = ("train", file, "--target", "readmitted", "--epsilon", 1, "--schema", tmp_path / "schema.json", "--out", run)
    done = start(*asked, file_size=18_000, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the report was not written" in " ".join(done.stderr.split())
    assert RunFolder.open(run).model().classes == ("no", "yes")
    assert not [path.name for path in run.iterdir() if "report" in path.name]
    assert not (run / "checkpoint").exists()
