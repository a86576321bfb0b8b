import pytest
import typer
from fakes_records import story, written_run
from typer.testing import CliRunner

from kvbench.cli.report import report


@pytest.fixture
def invoke():
    """Run the verb by itself."""
    app = typer.Typer()
    app.command()(report)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


def test_the_report_of_a_run_is_written_into_its_folder_and_its_path_is_printed(tmp_path, invoke):
    """One line on stdout: where to look."""
    folder = written_run(tmp_path, story(sessions=2, turns=1))
    result = invoke(folder.path)

    assert result.exit_code == 0
    assert result.stdout == f"{folder.path / 'report.html'}\n"
    assert (folder.path / "report.html").read_text().startswith("<!doctype html>")


def test_a_comparison_goes_where_it_is_told_to(tmp_path, invoke):
    """With --out, for any number of runs."""
    paths = [written_run(tmp_path, story(sessions=2, turns=1)).path for _ in range(2)]
    result = invoke(*paths, "--out", tmp_path / "both.html")

    assert result.stdout == f"{tmp_path / 'both.html'}\n"
    assert "prefix (2)" in (tmp_path / "both.html").read_text()
