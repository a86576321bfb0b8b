from __future__ import annotations

from pathlib import Path

from kvbench.metrics.catalogue import CATALOGUE
from kvbench.metrics.document import page
from kvbench.metrics.engines import QUANTITIES

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_what_the_catalogue_draws():
    """A stale page is red; `kvbench generate` writes it anew."""
    assert PAGE.read_text() == page()


def test_every_metric_and_every_engines_name_is_on_the_page():
    """Nothing is told or read that is not documented."""
    text = page()

    assert [m.name for m in CATALOGUE if f"| `{m.name}` | {m.kind} |" not in text] == []
    assert [n for q in QUANTITIES for n in q.names if f"`{n}`" not in text] == []
