"""The seeded bugs."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    """A one-line mistake: `old` in a file of the source becomes `new`. One of `tests` fails then."""

    name: str
    file: str  # below src/privopt
    old: str
    new: str
    tests: tuple[str, ...]

    def text(self) -> str:
        """The file as it is."""
        return (ROOT / "src" / "privopt" / self.file).read_text()

    def seed(self, source: Path) -> None:
        """Put the bug into a copy of the source."""
        (source / "privopt" / self.file).write_text(self.text().replace(self.old, self.new))


BUGS: tuple[Bug, ...] = ()
