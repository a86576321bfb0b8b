"""The generator's testimony against itself."""

from kvbench.load.witness import Witness


def test_the_testimony_counts_what_it_was_told():
    """And measures its own CPU time."""
    witness = Witness()
    for lateness in (0.001, 0.002, 0.5):
        witness.sent(lateness)
    witness.ticked(0.01)
    witness.opened(3)
    witness.opened(2)
    witness.held_back()
    witness.built_late()
    witness.built_late()
    said = witness.testify(worker=4, kernel_stamps=True)
    assert (said.worker, said.turns, said.max_in_flight) == (4, 3, 3)
    assert 0.002 <= said.lateness_p50_s <= 0.00204
    assert (said.lateness_max_s, said.loop_delay_max_s) == (0.5, 0.01)
    assert (said.held_back, said.built_late, said.kernel_stamps) == (1, 2, True)
    assert said.cpu_share >= 0


def test_a_watcher_sees_what_is_open_and_the_latest_timer_since_its_last_look():
    """It sets the delay back itself."""
    witness = Witness()
    witness.ticked(0.2)
    witness.ticked(0.1)
    witness.opened(5)
    witness.opened(4)

    assert (witness.in_flight, witness.recent_delay) == (4, 0.2)
