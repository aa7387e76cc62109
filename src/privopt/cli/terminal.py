"""The terminal: what is printed there of names and files is plain text, without markup and control characters."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def plain(text: object) -> "Text":
    """Text from outside, line by line, for rich to print as it is."""
    from rich.text import Text

    from privopt.escaping import printable

    return Text("\n".join(map(printable, str(text).split("\n"))))


def say(console: "Console", text: object, *, before: str = "") -> None:
    """Print text on one line, after words with markup."""
    from rich.text import Text

    from privopt.escaping import printable

    console.print(Text.assemble(Text.from_markup(before), printable(str(text))), soft_wrap=True, highlight=False)
