"""Escaping of untrusted text (names of columns and files, classes, settings) for a terminal and for one line."""


def printable(text: str) -> str:
    r"""Escape control characters, line ends, lone surrogates and other invisible characters.

    So a name can neither send control codes to a terminal nor forge a line of a statement.

    >>> print(printable("age\x1b[2J\nε = 0"))
    age\x1b[2J\nε = 0
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
