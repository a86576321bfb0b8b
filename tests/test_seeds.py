"""Seeds: one in, independent stable streams out."""

from kvbench.seeds import derive, rng


def test_a_stream_is_the_same_on_every_machine_and_in_every_process():
    """The value is pinned: were it to change, every recorded plan would."""
    assert derive(7, "session", 3) == 12790009465698849924


def test_streams_of_different_names_differ():
    """Also where the joined names would read the same without a separator."""
    assert derive(1, "a", "bc") != derive(1, "ab", "c")
    assert rng(1, "x").random() != rng(1, "y").random()
