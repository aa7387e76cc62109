"""Data files that are damaged, or made to do harm: every kind of file, every kind of damage."""

import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.hostile.commands import SECRET, refused, refused_alone, run, table, train, write_schema
from tests.processes import one_fork_server

Writer = Callable[[Path], object]


def text(content: str | bytes) -> Writer:
    return lambda path: path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)


def parquet(**columns: pa.Array) -> Writer:
    return lambda path: pq.write_table(pa.table({**columns, "sick": pa.array(["no", "yes"])}), path)


def described(metadata: bytes) -> Writer:
    """A Parquet file that pandas is said to have written so."""

    def write(path: Path) -> None:
        columns = pa.table({"note": [SECRET, SECRET], "sick": ["no", "yes"]})
        pq.write_table(columns.replace_schema_metadata({b"pandas": metadata}), path)

    return write


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array))
    return buffer.getvalue()


def header(shape: str, descr: str = "<f8") -> bytes:
    """An npy member that claims a shape and holds a few bytes."""
    words = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    words += b" " * (-(len(words) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words + SECRET.encode()


def archive(**members: bytes) -> Writer:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file:
            for name, content in members.items():
                file.writestr(f"{name}.npy", content)

    return write


def patched(writer: Writer, *places: tuple[bytes, int, bytes]) -> Writer:
    """What a writer wrote, with bytes changed so far behind each occurrence of a mark."""

    def write(path: Path) -> None:
        writer(path)
        content = bytearray(path.read_bytes())
        for mark, offset, value in places:
            start = -1
            while (start := content.find(mark, start + 1)) >= 0:
                content[start + offset : start + offset + len(value)] = value
        path.write_bytes(content)

    return write


LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
PLAIN = archive(X=npy([[1.0], [2.0]]), y=npy([0, 1]))
ENCRYPTED = patched(PLAIN, (LOCAL, 6, b"\x01\x00"), (CENTRAL, 8, b"\x01\x00"))
UNKNOWN_COMPRESSION = patched(PLAIN, (LOCAL, 8, b"\x63\x00"), (CENTRAL, 10, b"\x63\x00"))
CSR = {"data": npy([1.0]), "indices": npy([0]), "indptr": npy([0, 1]), "y": npy([0])}


def odd_dates() -> pa.Array:
    return pa.array([10_000_000, 0], pa.int32()).cast(pa.date32())


def broken_text() -> pa.Array:
    content = pa.py_buffer(f"{SECRET}\xff{SECRET}\xff".encode("latin1"))
    offsets = pa.py_buffer(np.array([0, 10, 20], np.int32).tobytes())
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, content])


DAMAGED: dict[str, tuple[str, Writer, str]] = {
    "empty header": ("a.csv", text(f'"",""\n{SECRET},1\n'), "no column 'sick'"),
    "a name of 20,000 characters": ("a.csv", text("n" * 20_000 + f",sick\n{SECRET},no\n"), "longer than 10000 characters"),
    "a name of 200,000 characters": ("a.csv", text("n" * 200_000 + f",sick\n{SECRET},no\n"), "longer than 10000 characters"),
    "300,000 columns": ("a.csv", text(",".join(f"c{i}" for i in range(300_000)) + ",sick\n"), "300001 columns"),
    "a long cell and a short row": ("a.csv", text(f"note,sick\n{SECRET * 20_000},no\n{SECRET}\n"), "line 3 has 1 fields"),
    "an open quote": ("a.csv", text(f'note,sick\n"{SECRET},no\n' * 3), "ragged"),
    "NUL bytes": ("a.csv", text(f"note,sick\n{SECRET}\0,no\n\0\0\n"), ""),
    "not UTF-8": ("a.csv", text(f"note,sick\n{SECRET}\xff,no\n".encode("latin1")), "not UTF-8"),
    "half of a surrogate pair": ("a.csv", text(f"note,sick\n{SECRET}\ud800,no\n"), "not UTF-8"),
    "not gzip": ("a.csv.gz", text(f"note,sick\n{SECRET},no\n"), "cannot be read"),
    "text that is not UTF-8": ("a.parquet", parquet(note=broken_text()), "column 'note'"),
    "dates of another age": ("a.parquet", parquet(born=odd_dates()), "column 'born'"),
    "metadata that is no JSON": ("a.parquet", described(b"{"), ""),
    "metadata of other types": ("a.parquet", described(json.dumps({"index_columns": 3, "columns": "x"}).encode()), ""),
    "metadata of other columns": (
        "a.parquet",
        described(json.dumps({"index_columns": ["none"], "columns": [{"name": SECRET}], "column_indexes": []}).encode()),
        "",
    ),
    "cut": ("a.parquet", lambda path: (table().to_parquet(path), path.write_bytes(path.read_bytes()[:-20])), "damaged"),
    "encrypted": ("a.npz", ENCRYPTED, "damaged or encrypted"),
    "unknown compression": ("a.npz", UNKNOWN_COMPRESSION, "damaged or encrypted"),
    "no npy": ("a.npz", archive(X=SECRET.encode(), y=npy([0, 1])), "X in"),
    "an absurd shape": ("a.npz", archive(X=header("(1000000000000, 1000000000000)"), y=npy([0])), "damaged"),
    "a shape of 4000 digits": ("a.npz", archive(X=header(f"({'9' * 4000}, 1)"), y=npy([0])), "damaged"),
    "a negative shape": ("a.npz", archive(X=header("(-1, -1)"), y=npy([0])), "damaged"),
    "a shape that is no shape": ("a.npz", archive(X=header("(1, 'a')"), y=npy([0])), "damaged"),
    "Python objects": ("a.npz", archive(X=header("(1, 1)", "|O"), y=npy([0])), "Python objects"),
    "dates": ("a.npz", archive(X=npy([[1.0]]), y=npy(np.array(["2020-01-01"], "M8[D]"))), "y in"),
    "a format that is no word": ("a.npz", archive(**CSR, shape=npy([1, 1]), format=npy([SECRET, "csr"])), "not CSR"),
    "a shape of fractions": ("a.npz", archive(**CSR, shape=npy([1.0, np.nan])), "whole numbers"),
    "a shape of three": ("a.npz", archive(**CSR, shape=npy([1, 1, 1])), "do not fit"),
    "2⁴⁰ columns": ("a.npz", archive(**CSR, shape=npy([1, 2**40])), "1099511627776 columns"),
    "index 2·10⁹": ("a.svm", text(f"1 2000000000:1\n# {SECRET}\n0 1:1\n"), "2000000001 columns"),
    "index 10³⁰": ("a.svm", text(f"1 1{'0' * 30}:1\n# {SECRET}\n"), "not a LIBSVM file"),
    "a negative index": ("a.svm", text(f"1 -1:1\n# {SECRET}\n"), "not a LIBSVM file"),
    "words": ("a.svm", text(f"{SECRET} 1:{SECRET}\n"), "not a LIBSVM file"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused_with_one_line_that_quotes_no_cell(tmp_path: Path, damage: str) -> None:
    name, write, words = DAMAGED[damage]
    write(tmp_path / name)
    message = refused(*train(tmp_path / name))
    assert words in message
    assert not (tmp_path / "run").exists()


def zeros(path: Path) -> None:
    """A gigabyte of zeros that takes a megabyte, for deflated blocks of zeros are all alike."""
    block, count = 2**20, 1024
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packer.compress(bytes(block))
    packer.flush(zlib.Z_FULL_FLUSH)
    repeated = packer.compress(bytes(block)) + packer.flush(zlib.Z_FULL_FLUSH)
    start = header(f"({count}, {block // 8})")[:128]
    begun = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = begun.compress(start) + begun.flush(zlib.Z_FULL_FLUSH) + count * repeated + b"\x03\x00"
    crc = zlib.crc32(start)
    for _ in range(count):
        crc = zlib.crc32(bytes(block), crc)
    sizes = (crc, len(packed), len(start) + count * block)
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as file:
        file.writestr("X.npy", packed)
        file.writestr("y.npy", npy(np.zeros(count)))
    content = bytearray(plain.getvalue())
    for mark, method, place in ((LOCAL, 8, 14), (CENTRAL, 10, 16)):
        at = content.find(mark)
        content[at + method : at + method + 2] = b"\x08\x00"
        content[at + place : at + place + 12] = struct.pack("<III", *sizes)
    path.write_bytes(content)


def one_value(path: Path) -> None:
    """A hundred million cells that all are the same."""
    ones = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2**23, np.int8)), pa.array([SECRET]))
    pq.write_table(pa.table({f"c{place}": ones for place in range(12)} | {"sick": ones}), path)


def one_line(path: Path) -> None:
    path.write_bytes(gzip.compress(f"note,sick\n{SECRET},no\n".encode()) + 40 * gzip.compress(b"1,no\n" * 1_000_000))


@one_fork_server
@pytest.mark.parametrize(
    ("name", "write"), [("a.npz", zeros), ("a.parquet", one_value), ("a.csv.gz", one_line)], ids=["npz", "parquet", "csv.gz"]
)
def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_does(tmp_path: Path, name: str, write: Writer) -> None:
    write(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 1_500_000
    assert re.search(r"unpacks? to (more than )?\d+ bytes", refused_alone(*train(tmp_path / name)))


def test_the_bomb_is_a_file_that_numpy_reads(tmp_path: Path) -> None:
    """Else the refusal above would be for the wrong reason."""
    zeros(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz") as file, file.open("X.npy") as member:
        assert np.lib.format.read_magic(member) == (1, 0)
        shape, _, _ = np.lib.format.read_array_header_1_0(member)
        assert not any(member.read(2**21))
    assert 8 * np.prod(shape) == 2**30


@one_fork_server
def test_what_does_not_fit_into_memory_is_said_to_be_so(tmp_path: Path) -> None:
    size = 6_000_000
    (tmp_path / "a.csv").write_text("age,dose,sick\n" + f"1,2,{SECRET}\n" * size)
    message = refused_alone(*train(tmp_path / "a.csv"), memory=200_000_000)
    assert "memory of this machine does not suffice" in message
    assert "ragged" not in message


# ---------------------------------------------------------------- odd, but good


def test_a_wide_header_and_long_cells_are_read(tmp_path: Path) -> None:
    frame = table()

    frame.loc[3, "note"] = SECRET * 20_000
    frame.to_csv(tmp_path / "a.csv", index=False)
    schema = write_schema(tmp_path / "schema.json")
    assert run(*train(tmp_path / "a.csv", "--schema", schema)).exit_code == 0
    wide = pd.DataFrame(np.zeros((2, 40_000)), columns=[f"measurement {place}" for place in range(40_000)])
    wide["sick"] = ["no", None]  # so that short rows are looked for
    wide.to_csv(tmp_path / "wide.csv", index=False)
    assert "'sick' has missing values" in refused(*train(tmp_path / "wide.csv"))


def test_big_endian_arrays_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 2))
    np.savez(tmp_path / "a.npz", X=X.astype(">f8"), y=(X[:, 0] > 0).astype(">i4"))
    assert run(*train(tmp_path / "a.npz", "--row-norm", 3)).exit_code == 0


def test_a_wide_sparse_file_that_fits_is_read(tmp_path: Path) -> None:
    from privopt import datasets

    (tmp_path / "a.svm").write_text("".join(f"{row % 2} {row + 1}:1 {2**24 - 1}:1\n" for row in range(100)))
    found = datasets.read(tmp_path / "a.svm")
    assert len(found.names) == 2**24 - 1
    assert found.names[-1] == str(2**24 - 1)


# ---------------------------------------------------------------- the index of a frame


def test_an_index_with_a_name_is_a_column_and_one_without_is_left_out_with_a_warning(tmp_path: Path) -> None:
    schema = write_schema(tmp_path / "schema.json")
    frame = table()
    frame.set_index("age").to_parquet(tmp_path / "named.parquet")
    assert run(*train(tmp_path / "named.parquet", "--schema", schema)).exit_code == 0
    names = json.loads((tmp_path / "run" / "model.json").read_text())["names"]
    assert {name.split(" at ")[0] for name in names} == {"age", "dose"}
    frame[frame["dose"] > -2].to_parquet(tmp_path / "labels.parquet")
    result = run(*train(tmp_path / "labels.parquet", "--schema", schema, "--out", tmp_path / "other"))
    assert result.exit_code == 0
    assert "has no name and is left out" in result.stderr
    names = json.loads((tmp_path / "other" / "model.json").read_text())["names"]
    assert {name.split(" at ")[0] for name in names} == {"age", "dose"}
