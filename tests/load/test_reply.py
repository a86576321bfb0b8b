"""A reply keeps what came, within bounds, and folds it when it has ended."""

from kvbench.load.reply import KEEP_BODY_BYTES, KEEP_BYTES, RELIEF_PIECES, Reply
from kvbench.openai.stream import StreamFold

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


def test_nothing_is_parsed_before_the_stream_has_ended():
    """Parsing takes time that other turns need."""
    reply = Reply(StreamFold(), status=200)
    reply.add(1.0, TOKEN)
    assert reply.fold.first_token is None
    reply.settle()
    assert reply.fold.first_token == 1.0


def test_a_long_stream_is_folded_on_the_way():
    """Bytes that lie unparsed are bounded, and every stamp is kept."""
    reply = Reply(StreamFold(), status=200)
    count = 2 * KEEP_BYTES // len(TOKEN)
    for number in range(count):
        reply.add(float(number), TOKEN)
        assert reply._size <= KEEP_BYTES
    reply.settle()
    assert reply.fold.chunk_stamps == [float(number) for number in range(count)]


def test_settling_twice_changes_nothing():
    """Each piece is folded once."""
    reply = Reply(StreamFold(), status=200)
    reply.add(1.0, TOKEN)
    reply.settle()
    reply.settle()
    assert reply.fold.text == "a"


def test_of_an_error_body_the_beginning_is_kept():
    """An endless one must not fill the memory."""
    reply = Reply(StreamFold(), status=500)
    for _ in range(100):
        reply.add(1.0, b"x" * 10_000)
    assert reply.body == b"x" * KEEP_BODY_BYTES


def test_a_stream_is_folded_in_idle_time_when_that_is_worth_it():
    """Few pieces are left for later, and what is folded is no different."""
    reply = Reply(StreamFold(), status=200)
    for number in range(RELIEF_PIECES - 1):
        reply.add(float(number), TOKEN)
    assert not reply.relieve()
    reply.add(9.0, TOKEN)
    assert reply.relieve()
    assert not reply.relieve()
    assert reply.fold.chunk_stamps == [*map(float, range(RELIEF_PIECES - 1)), 9.0]
