"""When bytes arrived, by the kernel's stamp where there is one."""

import _socket
import socket
import struct
import time

import pytest

from kvbench.clock import VirtualClock, WallClock
from kvbench.load.stamps import Receiver, _age


class Pipe:
    """A socket that brings bytes with control messages of the test's choice."""

    def __init__(self, data: bytes, control: list) -> None:
        """Bring `data`."""
        self._data = data
        self._control = control

    def recvmsg_into(self, buffers, _size):
        """Deliver."""
        buffers[0][: len(self._data)] = self._data
        return len(self._data), self._control, 0, None


def stamp(seconds_ago: float) -> list:
    """Return the control message of data that arrived so long ago."""
    at = time.clock_gettime_ns(time.CLOCK_REALTIME) - int(seconds_ago * 1e9)
    return [(1, 37, struct.pack("@llllll", at // 10**9, at % 10**9, 0, 0, 0, 0))]


def test_the_age_of_the_data_is_taken_off_the_time_of_the_read():
    """A loop that reads late does not make the server late."""
    receiver = Receiver(VirtualClock(50.0))
    at, data = receiver.read(Pipe(b"abc", stamp(2.0)), not_before=10.0)
    assert data == b"abc"
    assert at == pytest.approx(48.0, abs=0.05)
    assert receiver.stamped


def test_nothing_arrives_before_what_is_known_to_have_happened():
    """A calendar that was set forward would say so."""
    at, _ = Receiver(VirtualClock(50.0)).read(Pipe(b"a", stamp(3600.0)), not_before=49.5)
    assert at == 49.5


def test_a_calendar_that_was_set_back_makes_no_arrival_in_the_future():
    """The time of the read is the latest that can be."""
    at, _ = Receiver(VirtualClock(50.0)).read(Pipe(b"a", stamp(-5.0)), not_before=10.0)
    assert at == 50.0


def test_without_a_stamp_the_time_of_the_read_stands():
    """As on other systems."""
    receiver = Receiver(VirtualClock(50.0))
    assert receiver.read(Pipe(b"a", []), not_before=10.0) == (50.0, b"a")
    assert not receiver.stamped


@pytest.mark.parametrize(
    "control",
    [
        pytest.param([(1, 29, b"\0" * 16)], id="another kind of message"),
        pytest.param([(1, 37, b"\0" * 8)], id="too short a message"),
        pytest.param([(1, 37, b"\0" * 48)], id="a stamp that is not set"),
    ],
)
def test_what_is_no_stamp_is_not_taken_for_one(control):
    """The kernel may send other messages, too."""
    assert _age(control) is None


def test_bytes_are_the_readers_own():
    """The buffer is used again."""
    receiver = Receiver(VirtualClock())
    _, first = receiver.read(Pipe(b"first", []), 0.0)
    receiver.read(Pipe(b"other", []), 0.0)
    assert first == b"first"


def test_the_kernel_stamps_real_sockets():
    """Late reads are seen through: the stamp is older than the read."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    near.connect(listener.getsockname())
    far, _ = listener.accept()
    receiver = Receiver(WallClock())
    receiver.enable(near)
    ages = []
    while not receiver.stamped and len(ages) < 100:  # it takes a moment to be switched on
        far.send(b"x")
        sent = time.monotonic()
        while time.monotonic() - sent < 0.005:
            pass
        at, _ = receiver.read(near, 0.0)
        ages.append(time.monotonic() - at)
    for sock in (near, far, listener):
        sock.close()
    assert receiver.stamped
    assert ages[-1] >= 0.005
