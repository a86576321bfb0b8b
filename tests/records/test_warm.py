"""A run whose caches may hold its own plan already."""

import pytest

from kvbench.errors import InputError
from kvbench.records.manifest import Manifest, Workload
from kvbench.records.run import RunFolder
from kvbench.records.warm import refuse_warm


def manifest(isolation="none", *, sha256="abc", target="http://pod", seed=1, **more):
    """Return the manifest of a run."""
    workload = Workload(sha256=sha256)
    return Manifest(target=target, seed=seed, workload=workload, isolation=isolation, **more)


def ran(tmp_path, *manifests):
    """Leave runs behind."""
    for number, one in enumerate(manifests):
        folder = RunFolder(tmp_path / f"run-{number}")
        folder.path.mkdir()
        folder.write_manifest(one)
    return tmp_path


@pytest.mark.parametrize("earlier", ["none", "reset"])
def test_the_same_plan_without_a_salt_is_refused_by_the_name_of_the_run_before(tmp_path, earlier):
    """A reset empties caches before a run, not after it."""
    runs = ran(tmp_path, manifest(earlier))

    with pytest.raises(InputError, match=r"run-0 sent this very plan to http://pod") as caught:
        refuse_warm(runs, manifest())
    assert "--warm" in caught.value.hint


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (manifest("salt"), manifest()),
        (manifest(), manifest("salt")),
        (manifest(), manifest("reset")),
        (manifest(), manifest(sha256="def")),
        (manifest(), manifest(target="http://other")),
        (manifest(), manifest(seed=2)),
        (manifest(), manifest(warm=True)),
    ],
)
def test_what_cannot_hit_what_is_left_or_is_meant_to_is_not_refused(tmp_path, before, now):
    """Salt, reset, another plan, another target, or warm on purpose."""
    refuse_warm(ran(tmp_path, before), now)


def test_runs_that_cannot_be_read_are_no_evidence(tmp_path):
    """And a folder that is not there holds none."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")

    refuse_warm(tmp_path, manifest())
    refuse_warm(tmp_path / "nowhere", manifest())
