import io

from fakes_records import failed_row, manifest, row, story
from rich.console import Console

from kvbench.records.summary import summarise
from kvbench.records.table import to_frame
from kvbench.report.table import summary_table


def _printed(*runs, width=100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(
        summary_table([summarise(to_frame(rows), manifest(rows, arm=arm)) for arm, rows in runs])
    )
    return console.file.getvalue()


def test_the_table_fits_a_hundred_columns_with_the_widest_numbers():
    """No number is cut off; a long name goes on in the next line."""
    rows = [
        row(i, pod=f"pod-{i % 16}", first_token_s=i + 0.1234, sent_s=i + 0.0119) for i in range(99)
    ]
    printed = _printed(("prefix_cost_with_a_very_long_name", rows), ("random", [failed_row(0)]))

    assert max(map(len, printed.splitlines())) <= 100
    assert "prefix_cost" in printed
    for cell in ("51.2 / 76.8 %", "111 ms", "7 % of 16", "11.9 ms", "unknown", "∞"):
        assert cell in printed


def test_a_line_of_the_table_holds_the_runs_numbers():
    """In the order of the head."""
    printed = _printed(("prefix", [*(row(i) for i in range(19)), failed_row(19)]))
    line = next(line for line in printed.splitlines() if line.startswith("prefix"))

    assert line.split("  ")[0] == "prefix"
    assert " ".join(line.split()) == (
        "prefix 20 51.2 / 76.8 % 200 ms 200 ms ∞ 4.11 100 % of 1 1 1 ms"
    )


def test_the_table_of_runs_that_went_well_fits_eighty_columns():
    """What a terminal has when it is opened; the column of failures would only hold zeros."""
    rows = [row(i, pod=f"pod-{i % 3}", first_token_s=i + 0.2345) for i in range(99)]
    printed = _printed(("round_robin", rows), ("prefix_cost", rows))

    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    assert "failed" not in printed


def test_a_name_is_text_and_not_markup():
    """Square brackets are a terminal's angle brackets."""
    assert "[red]x[/]" in _printed(("[red]x[/]", story(sessions=2)))


def test_degenerate_answers_have_a_column_where_there_are_some():
    """As a share of the answers that were long enough to be judged."""
    long = {"completion_tokens": 40, "max_tokens": 40}
    well = [row(i, **long) for i in range(8)]
    ill = [*well[:7], row(7, **long, degeneration="loop")]

    assert "degen-" not in _printed(("well", well))
    printed = _printed(("well", well), ("ill", ill), width=90)
    assert "degen-" in printed
    assert "12.5 %" in next(line for line in printed.splitlines() if line.startswith("ill"))
    assert "0 %" in next(line for line in printed.splitlines() if line.startswith("well"))
