"""A file that names pods."""

from __future__ import annotations

import pytest

from kvbench.errors import InputError
from kvbench.router.pods_file import read_pods


def test_a_file_names_pods_as_the_flag_does(tmp_path):
    """Comments and all that YAML allows; or none at all."""
    path = tmp_path / "pods.yaml"
    path.write_text(
        "# ours\npods:\n  - http://a:1\n  - http://b:2,events=tcp://b:5557  # the new one\n"
    )
    assert read_pods(path) == ["http://a:1", "http://b:2,events=tcp://b:5557"]

    path.write_text("pods: []")
    assert read_pods(path) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got an empty file"),
        ("- http://a:1", "expected pods: and a list of URLs"),
        ("pods: []\nmore: 1", "expected pods: and a list of URLs"),
        ("pods: http://a:1", ":1: pods: expected a list of URLs"),
        ("pods:\n#  - http://a:1", ":1: pods: expected a list of URLs, or [] for none"),
        ("pods:\n  - http://a:1\n  - 7", ":3: pods.1: expected a URL, got 7"),
        ("pods:\n  - http://a:1\n  - b:1", ":3: pods.1: expected a URL such as"),
        ("pods:\n  - dns://a:1", ":2: pods.0: expected a URL such as"),
        ("pods:\n  - http://a:1,what=x", ":2: pods.0"),
        ("pods:\n  - http://a:1\n  - http://a:1/", ":3: pods.1: a:1 is given twice"),
        ("pods: [", "not YAML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, words):
    """And what was expected there."""
    path = tmp_path / "pods.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_pods(path)

    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))
