"""Whether a target is ready, from what it said: every refusal names the flag that mends it."""

import pytest

from kvbench.errors import InputError, TargetError
from kvbench.stack.preflight import PodSays, Seen, notes, problems, refusal

GOOD = PodSays("pod-1", caching=True, cached_tokens=32, prompt_tokens=48)


def refused(seen, turns=(100,)):
    """Return the refusal of a target for turns of so many tokens."""
    return refusal(problems(seen, turns))


def test_a_target_that_is_ready_is_neither_refused_nor_noted():
    """Its window holds the longest turn to the token."""
    seen = Seen(window=100, pods=[GOOD])

    assert refused(seen) is None
    assert notes(seen) == []


@pytest.mark.parametrize(
    ("pod", "said", "flag"),
    [
        (
            PodSays("a", caching=True, told=False),
            "a does not say how many prompt tokens were cached",
            "--enable-prompt-tokens-details",
        ),
        (PodSays("a", caching=False), "a has prefix caching off", "--enable-prefix-caching"),
        (
            PodSays("a", caching=False, told=False),
            "a has prefix caching off",
            "--enable-prefix-caching",
        ),
        (
            PodSays("a", prompt_tokens=48),
            "a found nothing of a prompt that it had just been asked (48 tokens)",
            "--enable-prefix-caching",
        ),
        (
            PodSays("a", trouble="400 no chat template"),
            "a does not answer as it should: 400 no chat template",
            "see its log",
        ),
    ],
)
def test_what_a_pod_lacks_is_said_with_the_flag_that_turns_it_on(pod, said, flag):
    """It is the target's, so exit code 3; and there is a way to measure all the same."""
    error = refused(Seen(pods=[GOOD, pod]))

    assert type(error) is TargetError
    assert error.message == said
    assert flag in error.hint
    assert error.hint.endswith("pass --no-preflight to measure all the same")


def test_a_plan_that_does_not_fit_the_window_is_the_users_input():
    """Said with the length that would do."""
    error = refused(Seen(window=4096, pods=[GOOD]), turns=[4096, 4097, 9000])

    assert type(error) is InputError
    assert error.message == (
        "2 of 3 turns are longer than the model's window: up to 9,000 tokens with their answers, "
        "window 4,096"
    )
    assert "--max-model-len 9000" in error.hint


def test_a_window_that_is_not_told_holds_everything():
    """Nothing is assumed in a target's name."""
    assert refused(Seen(window=None, pods=[GOOD]), turns=[10**9]) is None


def test_several_problems_are_told_together_and_hints_once():
    """So that a user restarts the pods once."""
    mute = [PodSays(name, told=False) for name in ("a", "b")]

    error = refused(Seen(pods=mute))

    assert error.message == (
        "the target is not ready for this:"
        "\n  - a does not say how many prompt tokens were cached"
        "\n  - b does not say how many prompt tokens were cached"
    )
    assert error.hint.count("--enable-prompt-tokens-details") == 1


def test_another_tokenizer_is_noted_and_not_refused():
    """What it spoils is exactness: lengths and the ceiling; the flag is named."""
    seen = Seen(differences=["the tokenizer of the server is another one"], pods=[GOOD])

    assert refused(seen) is None
    (note,) = notes(seen)
    assert note == (
        "the tokenizer of the server is another one: lengths and the ceiling are approximate; "
        "--tokenizer takes the model's own"
    )


def test_a_target_without_tokenize_is_noted_as_unchecked():
    """Unknown is not equal."""
    assert notes(Seen(tokenizes=False, pods=[GOOD])) == [
        "the target has no /tokenize: it was not checked whether its tokenizer is ours"
    ]
