from __future__ import annotations

from types import SimpleNamespace

from kvbench.exporter.gpu import Gpu, read_gpus


class FakeNvml:
    """GPUs by (used, total, percent); None of each is refused."""

    class NVMLError(Exception):
        """NVML's own."""

    def __init__(self, *gpus, driver=True):
        self.gpus = gpus
        self.driver = driver
        self.open = 0

    def nvmlInit(self):  # noqa: N802 - NVML's name
        """Begin, if there is a driver."""
        if not self.driver:
            raise self.NVMLError
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        """End."""
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        """Return how many there are."""
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        """Return the GPU itself."""
        return self._given(self.gpus[index])

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        """Return its bytes."""
        return SimpleNamespace(used=gpu[0], total=gpu[1])

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        """Return its percents."""
        return SimpleNamespace(gpu=self._given(gpu[2]))

    def _given(self, value):
        if value is None:
            raise self.NVMLError
        return value


def test_gpus_come_in_bytes_and_shares_and_what_they_do_not_tell_is_unknown():
    """One tells all, one is lost, one has no utilisation."""
    nvml = FakeNvml((5, 10, 40), None, (6, 20, None))

    assert read_gpus(nvml) == [Gpu(0, 5, 10, 0.4), Gpu(2, 6, 20, None)]
    assert nvml.open == 0


def test_without_a_driver_there_are_no_gpus():
    """No error, no series."""
    assert read_gpus(FakeNvml((5, 10, 40), driver=False)) == []
