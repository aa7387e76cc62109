"""Docstrings as reStructuredText.

privopt's docstrings are plain text with `code`, **bold**, *emphasis*, lists, doctests, indented formulas and sections of
parameters, one line each. Everything else that reStructuredText would read as markup is escaped.
"""

import re
from collections.abc import Iterator, Sequence


def restructure(lines: Sequence[str]) -> Iterator[str]:
    """Translate one docstring.

    >>> list(restructure(["For x_ and `y`:", "    z = x*y", "- **Guarantee** one", "  and all", ">>> 1_000"]))
    ['For x\\\\_ and ``y``:', '', '::', '', '    z = x*y', '', '- **Guarantee** one', '  and all', '', '>>> 1_000']
    >>> list(restructure(["Parameters", "-----", "a, b : two numbers"]))
    ['.. rubric:: Parameters', '', '- ``a``, ``b``: two numbers']
    """
    kind = "empty"
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        before, kind = kind, _kind(line, after, kind)
        if kind not in (before, "dashes") and "empty" not in (kind, before):
            yield ""
        match kind:
            case "formula":
                yield from () if before == "formula" else ("::", "")
                yield line
            case "heading":
                yield f".. rubric:: {line}"
            case "parameter":
                names, _, meaning = line.partition(" : ")
                yield f"- {', '.join(f'``{name}``' for name in names.split(', '))}: {_escape(meaning)}"
            case "dashes":
                continue
            case "doctest":
                yield line
            case _:
                yield _escape(line)


def _kind(line: str, after: str, before: str) -> str:
    """What a line is, by itself and its neighbours."""
    if not line.strip():
        return "formula" if before == "formula" and after.startswith(" ") else "empty"
    if line.startswith(">>>") or before == "doctest":
        return "doctest"
    if re.fullmatch("-{3,}", line):
        return "dashes"
    if re.fullmatch("-{3,}", after):
        return "heading"
    if re.match(r"[\w, *]+ : ", line):
        return "parameter"
    if line.startswith("- "):
        return "list"
    if line.startswith(" "):
        return before if before in ("list", "parameter") else "formula"
    return "text"


MARKUP = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*|(?<![\w*])\*\w(?:[^*]*\w)?\*(?![\w*]))")


def _escape(line: str) -> str:
    """Keep `code`, **bold** and *emphasis*; the rest is text.

    >>> print(_escape("two `rounds`s, a_b"))
    two ``rounds``\\ s, a\\_b
    """
    pieces = MARKUP.split(line)
    for place, piece in enumerate(pieces):
        if place % 2 == 0:  # text
            pieces[place] = re.sub(r"([\\*`|_])", r"\\\1", piece)
        else:
            after = r"\ " if re.match(r"\w", pieces[place + 1]) else ""  # markup ends at the end of a word
            pieces[place] = (f"`{piece}`" if piece.startswith("`") else piece) + after
    return "".join(pieces)
