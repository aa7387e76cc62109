"""The application: its commands, and how errors end."""

import sys
import warnings
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from privopt.cli.account import account
from privopt.cli.bounds import bounds
from privopt.cli.demo import demo
from privopt.cli.methods import methods
from privopt.cli.plan import plan
from privopt.cli.predict import predict
from privopt.cli.show import show
from privopt.cli.train import train
from privopt.errors import PrivoptError, PrivoptWarning

HELP = """Train models under differential privacy, and know what you can claim.

A private model is trained so that nobody can tell from it whether any one person's row was in the data. How sure
"nobody can tell" is, is a number, epsilon: 1 or less is strong, 3 is common, 10 is weak.

  privopt train patients.csv --target readmitted --epsilon 1     a private model, its statement and its ledger
  privopt show RUN                                               what may be claimed about it
  privopt predict RUN new_patients.csv                           use it
  privopt plan --n 50000 --d 100 --epsilon 1                     what is worth running, before any data are touched
"""


class _Group(typer.core.TyperGroup):
    """Refusals are one line on standard error and exit code 2, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        console = Console(stderr=True, highlight=False)

        def say(kind: str, message: object) -> None:
            console.print(f"{kind} {escape(str(message))}", soft_wrap=True)

        with warnings.catch_warnings():
            warnings.simplefilter("always", PrivoptWarning)
            warnings.showwarning = lambda message, *_: say("[bold yellow]Warning:[/]", message)
            try:
                return super().invoke(ctx)
            except PrivoptError as error:
                say("[bold red]Error:[/]", error)
            except OSError as error:
                say("[bold red]Error:[/]", f"{error.filename or 'a file'}: {error.strerror or error}")
            except KeyboardInterrupt:
                say("[bold]Stopped.[/]", "")
                sys.exit(130)
        sys.exit(2)


app = typer.Typer(
    name="privopt",
    cls=_Group,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (train, predict, show, account, plan, bounds, methods, demo):
    app.command()(command)
