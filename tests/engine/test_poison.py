"""A sample that kills the engine, on real SGLang: found by bisection, rejected by name, its neighbours stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eaglefeed.manifest import Manifest
from eaglefeed.records import sample_id
from eaglefeed.stores import open_store
from tests.chaos.feed import rows
from tests.chaos.node import RUN
from tests.chaos.stand import Stand, wait_until
from tests.services import BUCKET
from workers.sglang_plugin.faults import POISON
from workers.suspicion import Suspicion

EXTRA_RUNS = 8


@pytest.mark.timeout(600)
def test_one_poisonous_sample_of_64_costs_at_most_8_runs_and_no_neighbour(tmp_path: Path, monkeypatch):
    """63 samples are stored, the poison is in the manifest's rejects, the engine was started at most 8 more times."""
    planted = rows(0, 64)
    planted[37]["input_ids"] = [*POISON, *planted[37]["input_ids"]]
    planted[37]["loss_mask"] = [0] * len(POISON) + planted[37]["loss_mask"]
    with Stand(tmp_path / "stand", num_nodes=1, batch_tokens=32_768, fault="poison") as stand:
        stand.produce(planted)
        seconds = wait_until(stand.is_settled, 540, "everything is settled")
        counted, engine = stand.counted(), stand.nodes[0].engine
        restarts = engine.log.read_text("utf-8", "replace").count("started again in")
        for name, value in stand.seaweed.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/chaos")
        manifests = [Manifest.from_json(store.get(info.key)) for info in store.list(f"{RUN}/manifests/")]
    print(f"poison of 64: found after {restarts} more engine starts, {seconds:.0f} s")
    assert (counted["stored"], counted["rejected"]) == (63, 1)
    (rejected,) = [record for manifest in manifests for record in manifest.rejected]
    assert rejected.reason == "poison"
    assert rejected.id == sample_id(np.array(planted[37]["input_ids"], np.uint32))
    assert 2 <= restarts <= EXTRA_RUNS


def test_any_poison_of_64_is_found_within_8_deaths():
    """Wherever it stands, the bisection ends on it after at most eight deaths in all, and on nobody else."""
    ids = tuple(f"{number:032x}" for number in range(64))
    for poison in ids:
        suspicion, deaths = Suspicion(), 0
        while not suspicion.poison:
            asked = suspicion.probe() if suspicion.is_narrowing else ids
            if poison in asked:
                suspicion, deaths = suspicion.died(asked), deaths + 1
            else:
                suspicion = suspicion.survived(asked)
        assert suspicion.poison == (poison,) and deaths <= EXTRA_RUNS


def test_an_innocent_batch_is_acquitted():
    """Engines that died for other reasons while a batch was in flight cost none of its samples."""
    ids = tuple(f"{number:032x}" for number in range(64))
    suspicion = Suspicion().died(ids).died(ids)
    while suspicion.is_narrowing:
        suspicion = suspicion.survived(suspicion.probe())
    assert suspicion == Suspicion()
