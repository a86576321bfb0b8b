"""Profiles by name and from files, and what is said of a file that is none."""

import pytest

from kvbench.engine.profile_file import load_profile, profile_text
from kvbench.engine.profiles import Profile, profile
from kvbench.engine.timing import StepTime
from kvbench.errors import InputError

MEASURED = Profile(
    name="mine",
    time=StepTime(1e-3, 5.5e-3, 3.25e-5, 0.0, 1.5e-7, 2e-5),
    kv_bytes_per_token=1024,
    kv_tokens=32000,
    request_s=4e-3,
    request_token_s=6.5e-7,
)


def test_a_name_is_a_profile_that_comes_with_kvbench():
    """And a wrong one is refused with the nearest."""
    assert load_profile("qwen3-32b-tp2-h100") == profile("qwen3-32b-tp2-h100")
    with pytest.raises(InputError, match="got 'qwen3-32b-h100'"):
        load_profile("qwen3-32b-h100")


def test_a_profile_survives_its_file(tmp_path):
    """To the four digits that a file keeps; what it was measured from is for people."""
    path = tmp_path / "mine.yaml"
    path.write_text(profile_text(MEASURED, {"model": "tiny", "points": 64}))

    assert load_profile(str(path)) == MEASURED
    assert "points: 64" in path.read_text()


def test_a_file_may_leave_out_what_has_a_default(tmp_path):
    """Its name is that of the file, outside the engine nothing takes time, and units are read."""
    path = tmp_path / "short.yaml"
    times = "".join(f"  {name}: 1ms\n" for name in StepTime.__slots__)
    path.write_text(f"time:\n{times}kv_bytes_per_token: 0\nkv_tokens: 100\n")

    short = load_profile(str(path))

    assert (short.name, short.request_s, short.request_token_s) == ("short", 0.0, 0.0)
    assert short.time == StepTime(*[1e-3] * 6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("token_s:", "tokens_s:", "3: time.tokens_s: unknown key", id="unknown"),
        pytest.param("3.0e-05", "-1", "time.token_s: expected 0 or more seconds, got -1", id="-1"),
        pytest.param("3.0e-05", ".inf", "time.token_s: expected 0 or more seconds", id="endless"),
        pytest.param("3.0e-05", ".nan", "time.token_s: expected 0 or more seconds", id="none"),
        pytest.param("3.0e-05", "fast", "token_s: expected a duration such as", id="text"),
        pytest.param("  token_s: 3.0e-05\n", "", "0 or more seconds, got nothing", id="missing"),
        pytest.param("kv_tokens: 9", "kv_tokens: 0", "a whole number of at least 1", id="no cache"),
        pytest.param("kv_tokens: 9", "kv_tokens: true", "got True", id="a truth value"),
        pytest.param("kv_tokens: 9", "kv_token: 9", "kv_token: unknown key", id="a slip"),
    ],
)
def test_a_mistake_is_named_with_its_key(old, new, message, tmp_path):
    """The file, the line and the key."""
    good = (
        "name: x\ntime:\n  token_s: 3.0e-05\n  overhead_s: 0\n  weights_s: 0\n  pair_s: 0\n"
        "  context_s: 0\n  sequence_s: 0\nkv_bytes_per_token: 0\nkv_tokens: 9\n"
    )
    path = tmp_path / "bad.yaml"
    path.write_text(good.replace(old, new))

    with pytest.raises(InputError) as caught:
        load_profile(str(path))

    assert message in caught.value.message
    assert caught.value.message.startswith(f"{path}:")


@pytest.mark.parametrize("content", ["- 1\n", "time: 3\n", "name: x\n"])
def test_a_file_of_another_kind_is_refused(content, tmp_path):
    """It says what was expected where."""
    path = tmp_path / "other.yaml"
    path.write_text(content)

    with pytest.raises(InputError, match="expected keys and values, got"):
        load_profile(str(path))


def test_a_missing_file_is_named():
    """A path is not looked for among the names."""
    with pytest.raises(InputError, match=r"no/such\.yaml: cannot be read"):
        load_profile("no/such.yaml")
