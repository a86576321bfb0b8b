"""Every `.cache` file, played to a simulated pod over HTTP."""

import pytest
from cache_language import CASES, Case, verbs_of
from cache_over_http import HttpBackend


@pytest.fixture(scope="module")
def backend():
    """Return a backend; each case begins with a new pod."""
    backend = HttpBackend()
    yield backend
    backend.close()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_case_holds_over_http(backend, path):
    """Usage, events and what an index makes of them; not one sentence is passed over."""
    case = Case(path, backend)
    case.play()
    assert case.played == verbs_of(path)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("ask r2: A B → hit 2", "expected 2\n  got      1"),
        ("ask r2: X Y Z → hit 0", "expected 0\n  got      None"),
        ("ask r2: A → waits", "expected None\n  got      0"),
        ("clear", "expected True\n  got      False"),
        ("events: stored A", "expected ['stored A']\n  got      ['stored A', 'stored B']"),
    ],
)
def test_a_case_that_does_not_hold_over_http_is_reported(backend, tmp_path, sentence, expected):
    """A pod of four blocks and a request that holds two; the spec must be able to fail."""
    path = tmp_path / "bad.cache"
    path.write_text(f"pool 4 blocks of 16\nask r1: A B → hit 0\n{sentence}", encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        Case(path, backend).play()
    assert f"bad.cache:3: {sentence}\n  {expected}" in str(caught.value)
