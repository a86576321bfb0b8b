"""`kvbench baseline` on the command line; what it computes is tested in tests/gates."""

import typer
from typer.testing import CliRunner

from kvbench.cli.baseline import baseline
from kvbench.errors import InputError


def test_a_run_that_is_given_twice_is_no_second_run(tmp_path):
    """Two globs may meet; its noise would come out as none, and every gate would be too sharp."""
    app = typer.Typer()
    app.command()(baseline)
    run = tmp_path / "run"
    run.mkdir()
    arguments = [str(run), str(tmp_path / "run" / ".." / "run")]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, InputError)
    assert error.message == f"{run} is given twice"
