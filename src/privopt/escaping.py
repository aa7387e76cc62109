"""Text from outside (names of columns and files, classes, settings), made fit for a terminal and for one line."""


def printable(text: str) -> str:
    r"""`text` with control characters, line ends, lone surrogates and other invisible characters spelled out.

    A name can thus neither send codes to a terminal nor forge a line of a statement.

    >>> print(printable("age\x1b[2J\nε = 0"))
    age\x1b[2J\nε = 0
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
