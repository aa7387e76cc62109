"""The measured parts of the documentation are those of the results."""

import pytest

from benchmarks import pages


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_made_from_the_results(name: str) -> None:
    assert pages.page(name) == (pages.ROOT / "docs" / name).read_text()
