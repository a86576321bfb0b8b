"""What the load generator says of itself, in a line."""

from kvbench.records.manifest import Manifest, Testimony
from kvbench.report.generator import generator


def test_the_worst_of_all_workers_is_said_and_what_they_held_back_is_added_up():
    """Shares and delays are maxima, turns are sums."""
    load = [
        Testimony(cpu_share=0.2, loop_delay_p99_s=0.001, kernel_stamps=True, held_back=2),
        Testimony(cpu_share=0.3, loop_delay_p99_s=0.004, kernel_stamps=True, built_late=1),
    ]

    assert generator(Manifest(load=load)) == (
        "2 workers, at most 30.0 % of a core, timers late by 4 ms at p99, "
        "arrivals stamped by the kernel, 2 turns held back by --max-in-flight, "
        "1 turns built only when due"
    )


def test_what_is_not_known_is_not_said():
    """An older run says less."""
    assert generator(Manifest(load=[Testimony()])) == "1 worker"
    assert generator(Manifest()) is None


def test_arrivals_without_the_kernels_stamp_are_said():
    """They are as late as the event loop was."""
    said = generator(Manifest(load=[Testimony(kernel_stamps=False)]))

    assert said == "1 worker, arrivals not all stamped"
