"""The dashboards: all of them, and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts import pack
from kvbench.alerts.parts import LATE_S
from kvbench.alerts.rule import board_uid
from kvbench.dashboards import fleet, grafana, kv_cache, latency, load_run, memory, routing

if TYPE_CHECKING:
    from kvbench.alerts.settings import Settings
    from kvbench.dashboards.panel import Board


def boards(settings: Settings) -> tuple[Board, ...]:
    """Return the boards, the one for the wall first."""
    return (
        fleet.board(settings),
        kv_cache.board(),
        latency.board(settings),
        routing.board(),
        memory.board(settings.limits.near),
        load_run.board(LATE_S),
    )


def files(settings: Settings) -> dict[str, str]:
    """Return the dashboards' files: names in the folder `dashboards/`, and contents."""
    alerts = pack.alerts(settings)
    made = {}
    for board in boards(settings):
        lead: dict[str, tuple[str, ...]] = {}
        for alert in alerts:
            if alert.board == board.title:
                lead[alert.panel] = (*lead.get(alert.panel, ()), alert.name)
        name = board_uid(board.title).removeprefix("kvbench-")
        made[f"{name}.json"] = grafana.dashboard(board, lead, settings.runbooks)
    return made
