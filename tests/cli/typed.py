"""Commands as a user types them."""

from typer.testing import CliRunner

from privopt.cli.application import app


def privopt(*arguments: object, code: int = 0) -> str:
    """What a command prints, in one line."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return " ".join(result.output.split())
