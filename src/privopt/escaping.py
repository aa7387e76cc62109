"""Escaping of untrusted text (names of columns and files, classes, settings) for a terminal and for one line."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def printable(text: str) -> str:
    r"""Escape control characters, line ends, lone surrogates and other invisible characters.

    So a name can neither send control codes to a terminal nor forge a line of a statement.

    >>> print(printable("age\x1b[2J\nε = 0"))
    age\x1b[2J\nε = 0
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def plain(text: object) -> "Text":
    """Turn text from outside into a text that rich prints as it is, line by line."""
    from rich.text import Text

    return Text("\n".join(map(printable, str(text).split("\n"))))


@cache
def standard_error() -> "Console":
    """The console of standard error, one for all messages of a command."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def bar_console() -> "Console":
    """The console of a bar: that of messages, which are then printed above it; standard output if that is no terminal."""
    from rich.console import Console

    return standard_error() if standard_error().is_terminal else Console()


def say(console: "Console", text: object, *, before: str = "") -> None:
    """Print text from outside on one line, after `before`, which may have markup; on a terminal it wraps between words."""
    from rich.text import Text

    line = Text.assemble(Text.from_markup(before), printable(str(text)))
    console.print(line, soft_wrap=not console.is_terminal, highlight=False)
