"""The chaos run: samples go through the real stack while one seeded fault follows the other; then the audit.

scripts/chaos                                  2,000 samples, 200 faults
scripts/chaos --samples 120 --faults 12        the short form
scripts/chaos --seed 7                         the run whose seed a failure printed
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.chaos import exposure, faults, recovery
from tests.chaos.stand import Stand, rows, wait_until

ROWS_AT_ONCE = 50
MEASURED_ROWS = 400
SETTLE_SECONDS = 420.0
MEMORY_BYTES = 1200 << 20
"""No worker may grow beyond this, engines aside."""


def main() -> int:
    """Exit codes: 0 the audit is clean, 1 the failures are printed."""
    signal.signal(signal.SIGTERM, _interrupt)
    parsed = _arguments()
    seed = parsed.seed if parsed.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="eaglefeed-chaos-"))
    print(f"chaos: seed {seed}, {parsed.samples} samples, {parsed.faults} faults, logs in {folder}", flush=True)
    with Stand(folder, parsed.nodes) as stand:
        mark, failures = stand.mark, run(stand, seed, parsed.samples, parsed.faults, parsed.seconds)
        left = [f"{node.name} keeps {name}" for node in stand.nodes for name in node.dumps()]
        left += exposure.secrets_found(stand) + exposure.foreign_listeners(stand)
    failures += left + [f"orphan: {each}" for each in faults_orphans(mark)]
    for failure in failures:
        print(f"FAILED: {failure}", flush=True)
    if not failures:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"chaos: seed {seed}: {'FAILED; scripts/chaos --seed repeats it' if failures else 'all holds'}", flush=True)
    return 1 if failures else 0


def run(stand: Stand, seed: int, num_samples: int, num_faults: int, max_seconds: float) -> list[str]:
    """Feed, break, wait, audit; what does not hold, in sentences."""
    rng, begun, watch = random.Random(seed), time.monotonic(), MemoryWatch()
    feed = Feed(stand, num_samples)
    feed.more()
    wait_until(lambda: stand.counted().get("stored", 0) > 0, 180, "the first sample is stored")
    print(f"{time.monotonic() - begun:6.1f} s  the stand works", flush=True)
    done = 0
    while done < num_faults and time.monotonic() - begun < max_seconds:
        time.sleep(rng.uniform(0.2, 3.0))
        said = faults.draw(rng)(stand, rng)
        done += 1
        if done == num_faults // 2:
            stand.empty_redis()
            said += "; FLUSHALL, rebuild, produce again"
        feed.keep_up(done / num_faults)
        watch.look(stand)
        print(f"{time.monotonic() - begun:6.1f} s  fault {done:3d}  {said}  {_progress(stand)}", flush=True)
    while feed.more():
        time.sleep(0.1)
    settled = wait_until(stand.is_settled, SETTLE_SECONDS, f"everything is settled ({_progress(stand)})")
    print(
        f"{time.monotonic() - begun:6.1f} s  settled {settled:.1f} s after the last fault  {_progress(stand)}",
        flush=True,
    )
    # What holds back leftovers is their batch's job: the last storage jobs end before the folders are looked at.
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not any(node.dumps() for node in stand.nodes), 90, "the spools are empty")
    return check(stand, num_samples, done) + watch.failures


def check(stand: Stand, num_samples: int, num_faults: int) -> list[str]:
    """The audit's verdict, and that nobody was given up."""
    code, report = stand.audit()
    print(f"audit: exit {code}: {report}", flush=True)
    counted = stand.counted()
    print(
        f"{num_faults} faults; starts of each service: "
        f"{ {service.name: service.num_starts for service in stand.services()} }",
        flush=True,
    )
    failures = [] if code == 0 else [f"the audit's exit code is {code}: {report}"]
    if report.get("stored") != num_samples:
        failures.append(f"{report.get('stored')} of {num_samples} samples are stored")
    failures += [f"{name} is {report.get(name)}" for name in ("missing", "duplicate", "short") if report.get(name)]
    failures += [f"{name} counted: {counted[name]}" for name in ("dead", "rejected") if counted.get(name)]
    return failures


class Feed:
    """Rows come file by file, so that a run is not over before its faults are."""

    def __init__(self, stand: Stand, num_samples: int) -> None:
        self._stand, self._total, self._given = stand, num_samples, 0

    def more(self, at_most: int = ROWS_AT_ONCE) -> bool:
        number = min(at_most, self._total - self._given)
        if number <= 0:
            return False
        repeated = rows(max(0, self._given - 5), min(5, self._given))  # some rows were there before
        self._stand.produce(rows(self._given, number) + repeated)
        self._given += number
        return True

    def keep_up(self, share: float) -> None:
        """As much of the rows as of the faults."""
        while self._given < share * self._total and self.more():
            pass


class MemoryWatch:
    """The largest resident size of each worker's process."""

    def __init__(self) -> None:
        self.largest: dict[str, int] = {}

    def look(self, stand: Stand) -> None:
        for node in stand.nodes:
            for service in (*node.extract, node.store):
                with contextlib.suppress(psutil.Error):
                    used = psutil.Process(service.pid).memory_info().rss
                    self.largest[service.name] = max(used, self.largest.get(service.name, 0))

    @property
    def failures(self) -> list[str]:
        print("memory: " + ", ".join(f"{name} {used >> 20} MiB" for name, used in self.largest.items()), flush=True)
        return [f"{name} took {used >> 20} MiB" for name, used in self.largest.items() if used > MEMORY_BYTES]


def measure(stand: Stand) -> dict[str, float]:
    """Each recovery, one after the other, with samples in flight; seconds by its name."""
    feed = Feed(stand, 100_000)
    feed.more()
    wait_until(lambda: stand.counted().get("stored", 0) > 0, 180, "the first sample is stored")
    measured = {}
    for name, action in (
        ("redis back", recovery.redis_back),
        ("store back", recovery.store_back),
        ("node lost", recovery.node_lost),
    ):
        feed.more(MEASURED_ROWS)
        measured[name] = action(stand)
        print(f"recovery: {name}: {measured[name]:.1f} s", flush=True)
    feed.more(MEASURED_ROWS)
    measured["engine lost"], again = recovery.engine_lost(stand)
    print(f"recovery: engine lost: job handed back {measured['engine lost']:.1f} s, extracts again {again:.1f} s")
    return measured


def faults_orphans(mark: str) -> list[str]:
    """What still runs a few seconds after everything was stopped."""
    from tests.chaos.service import orphans

    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not orphans(mark), 20, "no orphan")
    return orphans(mark)


def _interrupt(number: int, frame: object) -> None:
    """Stopped by a signal, the stand ends as it does after a run: no process is left."""
    raise KeyboardInterrupt


def _progress(stand: Stand) -> str:
    counted = stand.counted()
    return " ".join(f"{name} {counted.get(name, 0)}" for name in ("unique", "stored", "rejected", "dead"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=3 * 3600, help="no fault begins after this time")
    parser.add_argument("--recovery", action="store_true", help="measure the recovery times instead")
    parsed = parser.parse_args()
    if parsed.recovery:
        with Stand(Path(tempfile.mkdtemp(prefix="eaglefeed-chaos-")), parsed.nodes) as stand:
            measured = measure(stand)
        sys.exit(int(any(seconds > recovery.LIMIT_SECONDS for seconds in measured.values())))
    return parsed


if __name__ == "__main__":
    sys.exit(main())
