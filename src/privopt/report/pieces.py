"""The pieces of which pages are made: text, tables, figures and warnings, as HTML without scripts.

All text that is not ours is escaped here, where it enters a page.
"""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from privopt import __version__
from privopt.escaping import printable

STYLE = Path(__file__).with_name("report.css")


def page(title: str, heading: str, sections: Iterable[tuple[str, str, str]], footer: str, after: str = "") -> str:
    """A page that stands alone: each section has an id, a heading and HTML; `after` follows them. The footer is text."""
    body = "\n".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{text(words)}</h2>\n{inner}\n</section>'
        for name, words, inner in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{text(title)}</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<h1>{text(title)}</h1>
{heading}
</header>
<main id="content" tabindex="-1">
{body}
{after}</main>
<footer><p>Written by privopt {text(__version__)}. {text(footer)}</p></footer>
</body>
</html>
"""


def text(words: object) -> str:
    """Escape text from outside, for an element or for an attribute in quotes."""
    return html.escape(printable(str(words)))


def lines(words: str) -> str:
    return "\n".join(text(line) for line in words.split("\n"))


def facts(facts: Iterable[tuple[str, str]]) -> str:
    return f'<dl class="facts">{"".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts)}</dl>'


def bullets(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def warning(words: str) -> str:
    return f'<p class="warning"><strong>Warning.</strong> {text(words)}</p>'


def note(words: str) -> str:
    return f'<p class="note">{text(words)}</p>'


def figure(svg: str, caption: str) -> str:
    return f'<figure>{svg}<figcaption class="note">{text(caption)}</figcaption></figure>'


def details(summary: str, inner: str, *, printed: bool = True) -> str:
    """What is shown when it is asked for, and on paper unless it is not `printed`."""
    kind = "" if printed else ' class="unprinted"'
    return f"<details{kind}><summary>{text(summary)}</summary>{inner}</details>"


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = (), tall: bool = False
) -> str:
    """A table in a box that scrolls, with the keyboard too."""

    def kind(place: int) -> str:
        return ' class="number"' if place in numbers else ""

    head = "".join(f'<th scope="col"{kind(place)}>{text(name)}</th>' for place, name in enumerate(columns))
    body = "\n".join(
        f'<tr><th scope="row"{kind(0)}>{text(first)}</th>'
        + "".join(f"<td{kind(place)}>{text(value)}</td>" for place, value in enumerate(others, start=1))
        + "</tr>"
        for first, *others in rows
    )
    return (
        f'<div class="scroll{" tall" if tall else ""}" tabindex="0" role="region" aria-label="{text(caption)}">\n'
        f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )
