"""The tokenizer that a target's plan is made with."""

import fakes_text
import pytest

from kvbench.errors import InputError
from kvbench.stack.own_tokenizer import tokenizer_for
from kvbench.stack.target import Target
from kvbench.text.tokenizer import Tokenizer


def target(root):
    """Return a target that says its model comes from `root`."""
    return Target("http://a:1", "m", root, None, {"a:1": "http://a:1"}, 16, routed=False)


def test_the_one_given_goes_first_then_the_targets_own_then_ours(tmp_path):
    """A name on a hub is no directory here, and is not looked for."""
    (tmp_path / "tokenizer.json").write_text(fakes_text._byte_level())
    ours = Tokenizer.load()
    assert tokenizer_for(target(str(tmp_path)), None).path == Tokenizer.load(tmp_path).path
    assert tokenizer_for(target(str(tmp_path)), ours.path).path == ours.path
    for root in (None, "meta-llama/Llama-3.1-8B", "/nowhere"):
        assert tokenizer_for(target(root), None).path == ours.path
    with pytest.raises(InputError, match="/nowhere"):
        tokenizer_for(target(str(tmp_path)), tmp_path / "nowhere")
