"""The measured parts of the assurance page are those of the results."""

from benchmarks import assurance


def test_the_page_is_made_from_the_results() -> None:
    assert assurance.page() == assurance.PAGE.read_text()
