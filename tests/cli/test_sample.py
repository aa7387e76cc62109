"""The made-up table: the same each time, with what real tables have, and something to learn."""

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

import pandas as pd

import privopt as package
from tests.cli.typed import privopt


def test_the_table_is_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    privopt("sample", tmp_path / "patients.csv")
    content = (tmp_path / "patients.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "a7c7af7021e6e0c196a755ab6b6168c7cfed338eea9754f84f5c55ff658ef9b3"
    privopt("sample", tmp_path / "others.csv", "--seed", 1)
    assert (tmp_path / "others.csv").read_bytes() != content


def test_the_table_has_what_real_tables_have(tmp_path: Path) -> None:
    privopt("sample", tmp_path / "patients.csv")
    table = pd.read_csv(tmp_path / "patients.csv")
    stays = table["patient"].value_counts()
    assert len(table) == 4000
    assert stays.max() > 5
    assert stays.min() == 1
    assert {name for name in table if table[name].isna().any()} == {"insurance", "admission"}
    assert set(table["readmitted"]) == {"no", "yes"}
    assert set(table.select_dtypes("number")) == {"age", "stay_days", "earlier_stays"}


def test_it_says_that_it_is_made_up_and_the_command_that_it_names_next_works(tmp_path: Path) -> None:
    printed = privopt("sample", tmp_path / "patients.csv")
    assert "made up" in printed
    named = re.search(r"Next: privopt (train \S+ --target readmitted --epsilon 1) or: privopt federate", printed)
    assert named is not None
    privopt(*named[1].split(), "--seed", 0, "--out", tmp_path / "run")
    privopt("sample", tmp_path / "new.csv", "--rows", 2000, "--seed", 1)
    scored = privopt("predict", tmp_path / "run", tmp_path / "new.csv", "--target", "readmitted", "--out", tmp_path / "out.csv")
    accuracy = re.search(r"accuracy ([\d.]+)", scored)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.76  # "no" for everybody: 0.66; scikit-learn without privacy: 0.80


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text("years of work")
    assert "exists already" in privopt("sample", tmp_path / "patients.csv", code=2)
    assert (tmp_path / "patients.csv").read_text() == "years of work"


def test_version_is_that_of_the_package() -> None:
    assert privopt("--version") == f"privopt {package.__version__}" == f"privopt {version('privopt')}"
