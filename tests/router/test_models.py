"""Which pod serves what."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.router.models import Models, UnknownModelError, read_models


def told(**pods: str | None) -> Models:
    """Return what pods have said: the letters are their models, None has not been said."""
    models = Models()
    for pod, names in pods.items():
        models.joined(pod)
        if names is not None:
            models.learned(pod, {name: {"id": name, "owner": pod} for name in names})
    return models


def serving(models: Models, name: str) -> str:
    """Return the pods that serve a model, "all" of them, or why nobody does."""
    try:
        pods = models.serving(name)
    except UnknownModelError as error:
        return str(error)
    return "all" if pods is None else "".join(sorted(pods))


def test_a_model_is_served_by_the_pods_that_say_so():
    """And one that all serve, by all."""
    models = told(a="xy", b="xz")

    assert serving(models, "x") == "all"
    assert serving(models, "y") == "a"
    assert serving(models, "z") == "b"
    assert serving(models, "") == "all"
    assert models.several


def test_a_model_that_nobody_serves_is_named_with_those_that_there_are():
    """In vLLM's words; and everybody is asked again."""
    models = told(a="x", b="y")

    assert serving(models, "q") == "The model `q` does not exist. The pods serve x, y."
    assert models.doubted("a")
    assert models.doubted("b")
    models.learned("a", {"q": {"id": "q"}})
    assert not models.doubted("a")
    assert serving(models, "q") == "a"


def test_a_pod_that_has_not_said_may_serve_anything():
    """Nothing is refused that might be served."""
    assert serving(told(a=None, b=None), "q") == "all"
    assert serving(told(a="x", b=None), "q") == "b"
    assert serving(told(a="x", b=None), "x") == "all"
    assert serving(told(), "q") == "all"


def test_pods_that_are_alike_need_not_be_told_apart():
    """Then no body is read for its model."""
    assert not told(a="xy", b="yx").several
    assert not told(a=None).several
    assert told(a="x", b="xy").several


def test_a_pod_that_changes_its_model_is_noticed():
    """The first time is no change."""
    models = Models()
    models.joined("a")

    assert not models.learned("a", {"x": {"id": "x"}})
    assert not models.learned("a", {"x": {"id": "x", "created": 2}})
    assert models.learned("a", {"y": {"id": "y"}})
    assert not models.learned("a", None)
    assert serving(models, "y") == "all"
    assert serving(models, "x").startswith("The model `x` does not exist.")
    models.left("a")
    assert (models.union(), models.numbers()) == ([], {})


def test_the_union_has_each_model_once_as_the_first_pod_describes_it():
    """Whatever else that is."""
    models = told(a="x", b="xy")

    assert {str(e["id"]): e["owner"] for e in models.union()} == {"x": "a", "y": "b"}
    assert models.numbers() == {"x": 2, "y": 1}
    assert models.of("b") == ["x", "y"]
    assert told(a=None).of("a") is None


def test_a_long_list_of_models_is_cut_in_a_sentence():
    """A hundred names help nobody; nor does a name of a megabyte."""
    models = Models()
    models.learned("a", {f"m{n:02}": {} for n in range(25)})

    sentence = serving(models, "q" * 10**6)
    assert sentence.endswith("m18, m19 and 5 more.")
    assert len(sentence) < 500


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param(b'{"data":[{"id":"x"},{"id":"y","root":"/m"}]}', ["x", "y"], id="two"),
        pytest.param(b'{"object":"list","data":[]}', [], id="none"),
        pytest.param(b'{"data":[{"id":7},{"no":"id"},{"id":"x"}]}', ["x"], id="odd entries"),
        pytest.param(b'{"data":7}', None, id="no list"),
        pytest.param(b'{"error":{}}', None, id="an error"),
        pytest.param(b'{"data":[{"id":"\xff"}]}', None, id="not UTF-8"),
        pytest.param(b"[" * 50_000, None, id="nested"),
        pytest.param(b"", None, id="nothing"),
    ],
)
def test_only_a_list_of_models_is_taken_for_one(body, names):
    """Anything else is not known, rather than none."""
    models = read_models(body)

    assert (None if models is None else list(models)) == names


def test_a_pod_that_lists_without_end_is_cut_short():
    """Memory is bounded by pods, not by what they say."""
    body = json.dumps({"data": [{"id": str(n)} for n in range(3000)]}).encode()

    assert len(read_models(body) or ()) == 1024


@given(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(st.none(), st.sets(st.sampled_from("xyz"))))
)
def test_a_model_goes_to_all_pods_that_have_it_or_have_not_said(pods):
    """And to no other."""
    models = told(**{pod: None if names is None else "".join(names) for pod, names in pods.items()})
    for model in "xyzq":
        able = {pod for pod, names in pods.items() if names is None or model in names}
        got = serving(models, model)
        if not able and pods:
            assert got.startswith(f"The model `{model}`")
        else:
            assert got == ("all" if len(able) == len(pods) else "".join(sorted(able)))
