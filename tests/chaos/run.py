"""The chaos run: samples go through the real stack while one seeded fault follows the other; then the audit.

scripts/chaos                                  2,000 samples, 200 faults
scripts/chaos --samples 150 --faults 12        the short form: each kind of fault once
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
from collections import Counter
from pathlib import Path

from tests.chaos import exposure, faults, recovery
from tests.chaos.feed import Feed
from tests.chaos.stand import Stand, wait_until
from tests.chaos.watch import Watch

MEASURED_ROWS = 400
ROWS_FOR_AN_ENGINE = 4000
"""So many that the other node is at work for as long as the lost engine starts."""
PAUSE_SECONDS = (0.2, 3.0)
SETTLE_SECONDS = 420.0


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
    begun, feed = time.monotonic(), Feed(stand, num_samples)
    feed.more()
    wait_until(lambda: stand.counted().get("stored", 0) > 0, 300, "the first sample is stored")
    print(f"{time.monotonic() - begun:6.1f} s  the stand works", flush=True)
    with Watch(stand) as watch:
        num_done = break_things(stand, feed, watch, seed, num_faults, max_seconds)
        settled = wait_until(stand.is_settled, SETTLE_SECONDS, f"everything is settled ({_progress(stand)})")
        seconds = time.monotonic() - begun
        print(f"{seconds:6.1f} s  settled {settled:.1f} s after the last fault  {_progress(stand)}", flush=True)
        # What holds back leftovers is their batch's job: the last storage jobs end before the folders are looked at.
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not any(node.dumps() for node in stand.nodes), 90, "the spools are empty")
    print(f"faults: {num_done} of {num_faults} done in {seconds / 60:.1f} minutes, {feed.given} samples", flush=True)
    print("\n".join([*watch.times(), _starts(stand), *watch.memory()]), flush=True)
    failures = [] if num_done == num_faults else [f"{num_done} of {num_faults} faults were done in time"]
    return failures + check(stand, feed.given) + watch.growth()


def break_things(stand: Stand, feed: Feed, watch: Watch, seed: int, num_faults: int, max_seconds: float) -> int:
    """One fault after the other, with something in work at each; how many were done.

    What the fault of a number is, and how it goes, is told by the seed alone, however fast the machine.
    """
    begun = time.monotonic()
    for number, fault in enumerate(faults.deal(seed, num_faults), 1):
        if time.monotonic() - begun > max_seconds:
            return number - 1
        rng = random.Random(f"{seed}/{number}")
        time.sleep(rng.uniform(*PAUSE_SECONDS))
        feed.keep_up(number / num_faults)
        met = watch.begins(faults.kind_of(fault))
        said = f"{fault(stand, rng)}, {met.num_in_work} in work"
        watch.over(met)
        if number == num_faults // 2:
            said += "; FLUSHALL, rebuild, produce again"
            met = watch.begins("redis emptied")
            stand.empty_redis()
            watch.over(met)
            watch.half()
        passed = time.monotonic() - begun
        pace = f"{60 * number / passed:.0f} faults/min, ETA {passed / number * (num_faults - number) / 60:.1f} min"
        print(f"{passed:6.1f} s  fault {number:3d}/{num_faults}  {said}  {_progress(stand)}  {pace}", flush=True)
    return num_faults


def check(stand: Stand, num_samples: int) -> list[str]:
    """The audit's verdict, that nobody was given up, and that Redis keeps no finished job."""
    code, report = stand.audit()
    print(f"audit: exit {code}: {report}", flush=True)
    counted, left = stand.counted(), stand.jobs_left()
    failures = [] if code == 0 else [f"the audit's exit code is {code}: {report}"]
    if report.get("stored") != num_samples:
        failures.append(f"{report.get('stored')} of {num_samples} samples are stored")
    failures += [f"{name} is {report.get(name)}" for name in ("missing", "duplicate", "short") if report.get(name)]
    failures += [f"{name} counted: {counted[name]}" for name in ("dead", "rejected") if counted.get(name)]
    return failures + [f"Redis keeps {key}" for key in left]


def measure(stand: Stand) -> dict[str, float]:
    """Each recovery, one after the other, with samples in flight; seconds by its name."""
    feed = Feed(stand, 0)
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
    feed.more(ROWS_FOR_AN_ENGINE)
    for what, seconds in recovery.engine_lost(stand).items():
        measured[f"engine lost, {what}"] = seconds
        print(f"recovery: engine lost: {what}: {seconds:.1f} s", flush=True)
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


def _starts(stand: Stand) -> str:
    """How often each kind of service was started beyond its first time."""
    again: Counter[str] = Counter()
    for service in stand.services():
        again[service.name.partition("/")[2].rstrip("0123456789") or "producer"] += service.num_starts - 1
    again["producer"] += stand.stopped_starts
    again["SGLang"] = sum(recovery.num_times_ready(node) - 1 for node in stand.nodes)
    return "started again: " + ", ".join(f"{kind} {number}" for kind, number in sorted(again.items()))


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
    parser.add_argument("--seconds", type=float, default=3 * 3600, help="give up after this time")
    parser.add_argument("--recovery", action="store_true", help="measure the recovery times instead")
    parsed = parser.parse_args()
    if parsed.recovery:
        with (
            tempfile.TemporaryDirectory(prefix="eaglefeed-chaos-") as folder,
            Stand(Path(folder), parsed.nodes, timeouts="") as stand,
        ):
            measured = measure(stand)
        sys.exit(int(any(seconds > recovery.LIMIT_SECONDS for seconds in measured.values())))
    return parsed


if __name__ == "__main__":
    sys.exit(main())
