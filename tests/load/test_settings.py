"""Options become settings once; what does not fit is told with the name of its flag."""

import subprocess
import sys

import pytest

from kvbench.errors import InputError
from kvbench.load.settings import OPTIONS, Settings, metrics_address

DEFAULTS = {option.name: option.default for option in OPTIONS}
HOST = "http://127.0.0.1:8000"


def parse(**options):
    """Return the settings for these options, all others at their defaults."""
    return Settings.parse(HOST, {**DEFAULTS, "workload": "workloads/chat.yaml", **options})


def test_empty_fields_of_the_web_form_are_options_that_were_not_given():
    """A form sends an empty string for them."""
    settings = parse(limit="", model="", run_dir=" ")
    assert (settings.limit, settings.model, settings.run_dir) == (None, None, None)


def test_values_are_parsed_with_their_units():
    """Text from a form and numbers from a program alike."""
    settings = parse(limit="12", speed="2.5", request_timeout="90s", block_size=32, seed="0")
    assert settings.limit == 12
    assert settings.speed == 2.5
    assert settings.request_timeout == 90.0
    assert settings.block_size == 32
    assert settings.seed == 0


def test_a_run_is_named_after_its_workload_unless_it_is_named():
    """So that a folder says what is in it."""
    assert parse().run_name == "chat"
    assert parse(run_name="monday").run_name == "monday"


BAD = [
    pytest.param({"limit": "0"}, "--limit: expected a whole number of at least 1, got '0'"),
    pytest.param({"limit": "-3"}, "--limit: expected a whole number of at least 1, got '-3'"),
    pytest.param({"seed": "x"}, "--seed: expected a whole number of at least 0, got 'x'"),
    pytest.param({"speed": "nan"}, "--speed: expected a number above zero, got 'nan'"),
    pytest.param({"speed": "fast"}, "--speed: expected a number above zero, got 'fast'"),
    pytest.param(
        {"request_timeout": "0s"}, "--request-timeout: expected a duration above zero, got '0s'"
    ),
    pytest.param(
        {"request_timeout": "soon"},
        '--request-timeout: expected a duration such as "250ms", "2s" or "1.5m", got \'soon\'',
    ),
    pytest.param(
        {"trace": "t.jsonl"}, "expected one of --workload and --trace, got both", id="two sources"
    ),
    pytest.param(
        {"workload": ""}, "expected one of --workload and --trace, got none", id="no source"
    ),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_does_not_fit_is_told_with_its_flag(options, message):
    """Word for word."""
    with pytest.raises(InputError) as caught:
        parse(**options)
    assert caught.value.message == message


def test_a_run_needs_a_target():
    """Locust leaves the host empty until somebody gives one."""
    with pytest.raises(InputError, match="--host: expected the base URL"):
        Settings.parse(None, {**DEFAULTS, "workload": "w.yaml"})


def test_the_key_comes_from_its_file_and_else_from_the_environment(tmp_path):
    """And from nowhere else."""
    file = tmp_path / "key"
    file.write_text("sk-file\n")
    environment = {"OPENAI_API_KEY": "sk-env"}
    assert parse(api_key_file=str(file)).key(environment) == "sk-file"
    assert parse().key(environment) == "sk-env"
    assert parse().key({}) is None


def test_a_key_that_could_break_a_header_is_refused_without_being_repeated(tmp_path):
    """A line break would smuggle a header in."""
    file = tmp_path / "key"
    file.write_text("sk-a\r\nx-evil: 1")
    with pytest.raises(InputError) as caught:
        parse(api_key_file=str(file)).key({})
    assert "sk-a" not in caught.value.message


def test_a_key_file_that_is_not_there_is_told(tmp_path):
    """By its path."""
    with pytest.raises(InputError, match="nothing: cannot be read as a key"):
        parse(api_key_file=str(tmp_path / "nothing")).key({})


def test_what_is_the_operators_is_no_field_of_the_web_form():
    """Who sees the form need not see where keys are, nor open ports."""
    hidden = {option.name for option in OPTIONS if not option.shown}
    assert hidden == {"api_key_file", "metrics_host", "metrics_port"}


@pytest.mark.parametrize(
    ("port", "address"), [("", None), ("0", ("127.0.0.1", 0)), ("9464", ("127.0.0.1", 9464))]
)
def test_metrics_are_served_on_loopback_unless_told_otherwise(port, address):
    """And nowhere of their own without a port."""
    assert metrics_address({"metrics_port": port, "metrics_host": ""}) == address


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_port_that_is_none_is_refused_by_its_flag(port):
    """As every other flag."""
    with pytest.raises(InputError, match="--metrics-port: expected"):
        metrics_address({"metrics_port": port})


def test_a_load_worker_does_not_carry_what_only_judgement_needs():
    """Tables of rows take 70 MB, in each worker."""
    code = "import sys, kvbench.load.locustfile; print({'pandas', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
