"""Values that the schema lists are found as they are written."""

from pathlib import Path

from privopt import datasets
from privopt.datasets import as_written


def test_codes_keep_their_zeros_and_words_for_nothing_stay_words(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("zip,pain,age,y\n01067,None,30,NA\n00001,,40,B\n")
    listed = {"zip": ["01067", "00001"], "pain": ["None", "Some"], "age": ["30", "40"], "y": ["NA", "B"]}
    table = datasets.read(file, "y", text=as_written(listed))
    assert table.frame is not None
    assert table.target is not None
    assert table.frame["zip"].tolist() == ["01067", "00001"]
    assert datasets.texts(table.frame["pain"]).tolist() == ["None", datasets.MISSING]
    assert table.frame["age"].tolist() == [30, 40]
    assert list(table.target) == ["NA", "B"]
