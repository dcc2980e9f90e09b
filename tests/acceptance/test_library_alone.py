"""The wheel's own requirements are enough to read a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy

from tests.runs import make_run

# What `pip install` of the wheel brings, and what these bring.
REQUIRED = ["numpy", "numpy.libs", "zstandard", "safetensors", "boto3", "botocore", "s3transfer", "jmespath"]
REQUIRED += ["dateutil", "six.py", "urllib3"]

READ = """
import importlib.util
import sys
import eaglefeed

if importlib.util.find_spec("torch") or importlib.util.find_spec("pyarrow"):
    sys.exit("more than the wheel's requirements can be imported")
run = eaglefeed.open(sys.argv[1], final="post_norm")
batches = list(eaglefeed.LengthBucketBatchSampler(run.lengths, 512))
samples = [sample for batch in eaglefeed.prefetch(run, batches) for sample in batch]
streamed = [sample for batch in eaglefeed.ShardStream(run) for sample in batch]
print(len(run), len(samples), len(streamed), samples[0]["aux"].dtype, sum(len(each["token_ids"]) for each in samples))
"""


def test_reading_needs_nothing_else(tmp_path: Path) -> None:
    """With numpy, zstandard, safetensors and boto3 alone importable, a run opens, selects, prefetches and streams."""
    make_run(str(tmp_path / "store"), tmp_path, [10, 20, 30, 40, 50])
    packages, site = tmp_path / "packages", Path(numpy.__file__).parents[1]
    packages.mkdir()
    for name in REQUIRED:
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    (packages / "eaglefeed").symlink_to(Path(__file__).parents[2] / "eaglefeed")
    done = subprocess.run(
        [sys.executable, "-S", "-c", READ, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={"PYTHONPATH": str(packages), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "5", "5", "float32", "150"]
