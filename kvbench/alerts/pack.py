"""The alert pack: all groups of rules, and the files that are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.alerts import cache, latency, parts, pods
from kvbench.alerts.recording import recordings
from kvbench.alerts.rule import Alert, manifest, rule_file

if TYPE_CHECKING:
    from kvbench.alerts.rule import Group
    from kvbench.alerts.settings import Settings


def alert_groups(settings: Settings) -> tuple[Group, ...]:
    """Return the groups of alerts."""
    return tuple(module.alerts(settings) for module in (cache, latency, pods, parts))


def alerts(settings: Settings) -> tuple[Alert, ...]:
    """Return every alert."""
    groups = alert_groups(settings)
    return tuple(rule for group in groups for rule in group.rules if isinstance(rule, Alert))


def files(settings: Settings) -> dict[str, str]:
    """Return the rule files and the manifest: names in the folder `alerts/`, and contents.

    Raises:
        InputError: An objective between buckets.
    """
    settings.check()
    recorded, alerting = recordings(settings), alert_groups(settings)
    return {
        "recording.rules.yml": rule_file(recorded, settings),
        "alerts.rules.yml": rule_file(alerting, settings),
        "prometheusrule.yml": manifest((*recorded, *alerting), settings),
    }
