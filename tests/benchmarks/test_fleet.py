"""The simulation of a fleet: its admission is the server's, its engine and autoscaler are right."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from benchmarks.fleet import replica as replicas
from benchmarks.fleet import scenarios
from benchmarks.fleet.__main__ import tables_of
from benchmarks.fleet.autoscaler import Autoscaler, Scaling
from benchmarks.fleet.fleet import Scenario, run
from benchmarks.fleet.replica import Engine, EngineModel, Replica, Request
from tests.support.paths import ROOT
from tests.support.virtual_time import virtually

from trtllm_truss.errors import EngineUnavailable, QueueFull
from trtllm_truss.inference.admission import Admission
from trtllm_truss.settings.model import Serving

SMALL = EngineModel(batch=4, kv_tokens=8192, step_s=0.02, row_s=0.01)


@virtually
async def test_running_requests_share_the_engine() -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(SMALL)
    first = engine.generate(100)
    await asyncio.sleep(1.5)  # 50 steps of 0.03 s
    second = engine.generate(25)
    await second  # 25 steps of 0.04 s
    assert loop.time() == pytest.approx(2.5)
    await first  # 25 more of 0.03 s
    assert loop.time() == pytest.approx(3.25)


@virtually
async def test_the_loss_of_a_replica_fails_running_and_waiting_requests() -> None:
    one = Replica(SMALL, Serving(), zone=0)
    tasks = [asyncio.create_task(one.serve(Request(10, 100, 100))) for _ in range(8)]
    await asyncio.sleep(0.1)
    assert (one.admission.running, one.admission.waiting) == (4, 4)
    one.lose()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {EngineUnavailable}
    assert one.in_flight == 0


def test_its_decisions_are_those_of_the_servers_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every grant and refusal of a small fleet passes through the real class, unchanged."""
    asked: dict[Admission, list[tuple[float, str, int]]] = {}
    limits = Serving(queue_limit=6, queue_timeout_s=2)

    class Recording(Admission):
        async def admit(self, tokens: int) -> object:  # type: ignore[override]
            loop = asyncio.get_running_loop()
            calls = asked.setdefault(self, [])
            number = len(calls)
            calls.append((loop.time(), "", tokens))
            try:
                slot = await super().admit(tokens)
            except QueueFull as error:
                calls[number] = (calls[number][0], error.message, tokens)
                raise
            return slot

    assert replicas.Admission is Admission
    monkeypatch.setattr(replicas, "Admission", Recording)
    load = scenarios.Steady(4 * SMALL.requests_per_s(260))
    result = run(Scenario(load, 300, 2, router="round robin", model=SMALL, limits=limits))
    assert result.counts["refused"] > 50
    assert result.counts["answered"] > 50
    refusals = [message for calls in asked.values() for _, message, _ in calls if message]
    kinds = ("serving.queue_limit", "would be about", "has waited 2 s")
    assert sum(any(kind in message for kind in kinds) for message in refusals) == len(refusals)
    assert result.counts["refused"] <= len(refusals)  # a request asks two replicas

    monkeypatch.undo()
    plain = run(Scenario(load, 300, 2, router="round robin", model=SMALL, limits=limits))
    assert plain == result


def test_a_run_repeats_itself_and_the_seed_matters() -> None:
    scenario = scenarios.sizes((3,), 30)["3 random"]
    assert run(scenario) == run(scenario)
    assert run(scenario) != run(replace(scenario, seed=2))


def test_every_request_has_one_end() -> None:
    result = run(
        replace(scenarios.zones(6, 90)["90%"], zone_lost_s=60, counted_from_s=0, sample_s=0.5)
    )
    arrived = sum(sample.arrived for sample in result.samples)
    in_flight = result.samples[-1].running + result.samples[-1].waiting
    assert arrived - result.counts.total() == pytest.approx(in_flight, abs=30)
    assert result.counts["lost"] > 50
    assert result.counts["answered"] == len(result.waits_s)


def test_throughput_is_the_models() -> None:
    load = scenarios.Steady(2 * scenarios.CAPACITY)
    overload = Scenario(load, 400, 1, counted_from_s=60)
    result = run(overload)
    carried = result.counts["answered"] / (overload.seconds - overload.counted_from_s - 15)
    assert carried == pytest.approx(scenarios.CAPACITY, rel=0.1)  # short ones go first
    assert result.slot_share > 0.97


def test_the_autoscaler_follows_kubernetes() -> None:
    scaler = Autoscaler(Scaling(threshold=10, most=50))
    assert scaler.desired(0, 4, 43) == 4  # within the tolerance
    assert scaler.desired(15, 4, 45) == 5
    assert scaler.desired(30, 5, 1000) == 8  # 4 at the beginning of the minute: doubled
    assert scaler.desired(45, 8, 1000) == 8
    assert scaler.desired(90, 8, 1000) == 16
    assert scaler.desired(105, 16, 10) == 16  # the highest wish of ten minutes
    assert scaler.desired(800, 16, 10) == 14  # ten per cent a minute
    assert scaler.desired(815, 14, 10) == 14
    assert scaler.desired(861, 14, 10) == 12


def test_the_settings_are_those_of_the_example() -> None:
    spec = yaml.safe_load((ROOT / "examples/kubernetes/autoscaling.yaml").read_text())["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    percent, pods = behavior["scaleUp"]["policies"]
    (down,) = behavior["scaleDown"]["policies"]
    scaling = Scaling()
    assert int(spec["triggers"][0]["metadata"]["threshold"]) == scaling.threshold
    assert math.floor(scenarios.MODEL.batch * scenarios.TARGET + 0.5) == scaling.threshold
    assert spec["pollingInterval"] == scaling.interval_s
    assert (percent["value"], pods["value"]) == (100 * scaling.up_share, scaling.up_replicas)
    assert down["value"] == 100 * scaling.down_share
    assert {each["periodSeconds"] for each in (percent, pods, down)} == {scaling.period_s}
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == scaling.stabilization_s


def test_the_page_has_the_tables_of_the_scenarios() -> None:
    """Runs of seconds make tables of the same shape; `make simulate` writes the figures."""
    groups = {
        "fleet-sizes": scenarios.sizes((1,), 1),
        "fleet-step": scenarios.steps(1, 1),
        "fleet-zone": scenarios.zones(3, 1),
        "fleet-day": scenarios.days(1, 1),
    }
    results = {
        group: {name: run(replace(one, seconds=61)) for name, one in runs.items()}
        for group, runs in groups.items()
    }
    page = Path(ROOT / "docs/scale.md").read_text()
    for name, text in tables_of(results).items():
        written = page.partition(f"<!-- table: {name} -->\n")[2].partition("<!-- end -->")[0]
        head = text.splitlines()[0]
        assert written.startswith(head), name
        if name != "fleet-sizes":
            firsts = [line.split(" | ")[0] for line in text.splitlines()]
            assert [line.split(" | ")[0] for line in written.splitlines()] == firsts
