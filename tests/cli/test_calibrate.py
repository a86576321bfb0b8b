"""`kvbench calibrate` refuses what it could not write before it measures anything."""

import pytest
import typer
from typer.testing import CliRunner

from kvbench.cli.calibrate import calibrate
from kvbench.errors import InputError, KvbenchError, TargetError


def call(*arguments):
    """Run the verb."""
    app = typer.Typer()
    app.command()(calibrate)
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        pytest.param(
            ("--plot", "plot.gif"), InputError, "--plot: expected a file that ends in", id="plot"
        ),
        pytest.param(("--out", "mine"), InputError, "ends in .yaml, got mine", id="no suffix"),
        pytest.param(
            ("--out", "no/such/mine.yaml"), InputError, "--out: no such directory", id="directory"
        ),
        pytest.param((), TargetError, "http://127.0.0.1:1 does not answer", id="nobody there"),
    ],
)
def test_what_cannot_work_is_said_at_once(arguments, kind, message):
    """A typing error must not cost minutes of measuring."""
    with pytest.raises(KvbenchError) as caught:
        call("http://127.0.0.1:1", *arguments)

    assert isinstance(caught.value, kind)
    assert message in caught.value.message
