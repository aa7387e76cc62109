"""The application: its commands, and how errors end."""

import inspect
import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from privopt import __version__
from privopt.cli.account import account
from privopt.cli.bounds import bounds
from privopt.cli.demo import demo, sample
from privopt.cli.evaluate import evaluate
from privopt.cli.federate import federate
from privopt.cli.form import schema_form
from privopt.cli.plan import methods, plan
from privopt.cli.predict import predict
from privopt.cli.show import card, show
from privopt.cli.train import train
from privopt.cli.tune import tune
from privopt.errors import PrivoptError, PrivoptWarning
from privopt.escaping import printable, say, standard_error

WRONG_USAGE: Any = typer.BadParameter.__base__  # click's UsageError, wherever typer keeps it

HELP = """Train models under differential privacy, and know what you can claim.

Nobody can tell from a private model whether any one row was in its training
data. Epsilon measures how well that is hidden: 1 or less is strong, 3 is
common, 10 is weak.

  privopt sample patients.csv            a made-up table to try it on
  privopt train patients.csv --target readmitted --epsilon 1
                                         a private model and its statement
  privopt schema patients.csv > schema.json
                                         what is publicly known, to fill in
  privopt show RUN                       what may be claimed about it
  privopt predict RUN new_patients.csv   use it
  privopt evaluate RUN held_out.csv --epsilon 0.5
                                         is it any good? measured privately
  privopt plan --n 50000 --d 100 --epsilon 1
                                         what is worth running; reads no data
"""


class _Group(typer.core.TyperGroup):
    """Errors end with one line on standard error and exit code 2, never with a traceback, which may quote a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["privopt arguments"] = list(args)  # with which --nproc starts other processes
        try:
            return super().parse_args(ctx, args)
        except WRONG_USAGE as error:
            error.message = printable(error.message)
            raise

    def get_command(self, ctx: Any, name: str) -> Any:
        command = super().get_command(ctx, name)
        if command is not None:
            for parameter in command.params:
                if parameter.help is None:  # typer below 0.21 loses the help of arguments with click 8.5
                    parameter.help = _find_help(command.callback, parameter.name)
        return command

    def invoke(self, ctx: Any) -> Any:
        console = standard_error()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of libraries may quote a value
            warnings.simplefilter("always", PrivoptWarning)
            warnings.showwarning = lambda message, *_: say(console, message, before="[bold yellow]Warning:[/] ")
            try:
                result = super().invoke(ctx)
                sys.stdout.flush()
                return result
            except WRONG_USAGE as error:
                error.message = printable(error.message)
                raise
            except PrivoptError as error:
                message = str(error)
            except BrokenPipeError:  # the reader, such as head, closed the pipe
                _give_up_output()
                sys.exit(1)
            except OSError as error:
                message = f"{error.filename or 'standard output'}: {error.strerror or type(error).__name__}."
                _give_up_output()
            except MemoryError:
                message = OUT_OF_MEMORY
            except KeyboardInterrupt:
                say(console, "", before="[bold]Stopped.[/]")
                sys.exit(130)
            except (typer.Exit, typer.Abort):
                raise
            except Exception as error:
                message = _describe_unexpected(error)
                if message != OUT_OF_MEMORY:
                    say(console, message, before="[bold red]Error:[/] ")
                    sys.exit(1)
        say(console, message, before="[bold red]Error:[/] ")
        sys.exit(2)


def _find_help(command: Any, name: str) -> str | None:
    """Find the help text of a command's argument in its signature."""
    annotation = inspect.signature(command).parameters[name].annotation
    return next((note.help for note in getattr(annotation, "__metadata__", ()) if hasattr(note, "help")), None)


OUT_OF_MEMORY = "the memory of this machine does not suffice. Use fewer rows or columns, a sparse file, or another machine."


def _describe_unexpected(error: Exception) -> str:
    """Describe an unexpected error without its message, which may quote the data."""
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's way to say so
        return OUT_OF_MEMORY
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(last.filename)}, line {last.lineno}"
    return f"{type(error).__name__} in {where}. This is a bug of privopt; what the error says is withheld: it may quote the data."


def _give_up_output() -> None:
    """Discard what standard output still holds, so that Python does not try to write it again at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # standard output is not a file
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


app = typer.Typer(
    name="privopt",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _join_lines(text: str) -> str:
    """Join the lines of each paragraph, so that a terminal of any width wraps them; those after \\b stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split("\n")) for part in paragraphs)


COMMANDS = {  # under the headings of --help
    "Before there are data": (sample, demo, plan),
    "A private model": (schema_form, train, tune, federate),
    "What to do with it": (show, card, predict, evaluate),
    "Numbers, without data": (account, methods, bounds),
}
for heading, commands in COMMANDS.items():
    for command in commands:
        name = "schema" if command is schema_form else command.__name__
        app.command(name, help=_join_lines(command.__doc__ or ""), rich_help_panel=heading)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"privopt {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """The options of `privopt` itself."""
