"""SGLang's rule on worked examples: each line was seen on SGLang 0.5.23's own class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive.contract import Policy
from policies import EmaTiers
from policies.ema_ladder import Ladder
from policies.ema_slot import Pacing, Slot
from tests.policies.steps import CAPS, feed, report, view

AT_ONCE = {"ema_alpha": 1.0, "warmup_batches": 0, "update_interval": 1}


def slot(start: int, steps: tuple[int, ...] = (1, 3, 7), **options: Any) -> Slot:
    return Slot(Ladder(steps, **{**AT_ONCE, **options}), start, Pacing())


def walk(slot: Slot, *means: float) -> list[int]:
    gammas = []
    for mean in means:
        slot.observe(mean)
        gammas.append(slot.gamma)
    return gammas


def one_tier(start: int, **options: Any) -> EmaTiers:
    return EmaTiers.sglang({"1": {"candidate_steps": [1, 3, 7], **AT_ONCE, **options}}, initial_steps=start)


def test_a_start_that_is_no_candidate_becomes_the_upper_median() -> None:
    policy = one_tier(2)
    assert policy.gamma_at(1) == 3
    assert policy.averages() == {1: 2.0}


def test_warm_up_and_interval() -> None:
    assert walk(slot(3, warmup_batches=1, update_interval=2), 0, 0, 0) == [3, 3, 1]


def test_a_report_without_rows_uses_up_no_warm_up() -> None:
    policy = one_tier(3, warmup_batches=1)
    assert [feed(policy, counts) for counts in ([], [0, 0], [0, 0])] == [3, 3, 3]
    assert policy.gamma_at(2) == 1


def test_climbs_rung_by_rung_and_falls_several_at_once() -> None:
    assert walk(slot(1), 1, 3) == [3, 7]
    assert walk(slot(7), 0) == [1]


def test_rising_is_strict_and_falling_inclusive() -> None:
    assert walk(slot(3), 2.5, 3) == [3, 7]
    assert walk(slot(3, down_hysteresis=0.0, up_hysteresis=0.5), 0.5) == [1]
    assert walk(slot(3, up_hysteresis=0.75), 3, 4) == [3, 7]
    assert walk(slot(7, down_hysteresis=-0.75), 2, 1) == [7, 3]


def test_average_decays() -> None:
    one = slot(3, ema_alpha=0.5, down_hysteresis=0.0)
    averages = []
    gammas = []
    for mean in (4, 0, 0, 0):
        gammas += walk(one, mean)
        averages.append(one.ema)
    assert gammas == [7, 3, 3, 1]
    assert averages == [3.0, 1.5, 0.75, 0.375]


def test_average_is_frozen_at_zero() -> None:
    one = slot(3, (0, 3), down_hysteresis=0.0)
    assert walk(one, 0, 3) == [0, 3]
    assert one.ema == 0.0
    assert walk(one, 0) == [0]


def test_ceiling_lowers() -> None:
    one = slot(7, ceiling_coeff=1.0)
    one.ema = 1.0
    assert walk(one, 1) == [1]


def test_default_tiers() -> None:
    policy = EmaTiers.sglang()
    assert [policy.gamma_at(size) for size in (1, 8, 32, 64)] == [3, 3, 1, 0]
    assert policy.averages() == {1: 2.0, 8: 2.0, 32: 0.0, 64: -1.0}


def test_routes_by_batch_size_after_padding_to_a_captured_one() -> None:
    tiers = {str(bound): {"candidate_steps": [gamma]} for bound, gamma in ((1, 4), (8, 3), (32, 2), (64, 1))}
    plain = EmaTiers.sglang(tiers)
    sizes = (0, 1, 7, 8, 31, 32, 63, 64, 1000)
    assert [plain.gamma_at(size) for size in sizes] == [4, 4, 4, 3, 3, 2, 2, 1, 1]
    padded = EmaTiers.sglang(tiers, graph_batch_sizes=[32, 4, 8, 16])
    assert [padded.gamma_at(size) for size in (4, 5, 17, 33, 100)] == [4, 3, 2, 2, 1]


def test_needs_hold_only_what_the_routed_slots_reach() -> None:
    needs = EmaTiers.sglang(graph_batch_sizes=[4, 8, 16, 32]).bind(CAPS)
    assert needs.gammas[4] == (0, 1, 3, 5, 7)
    assert needs.gammas[8] == (0, 1, 3)
    assert needs.gammas[32] == (0, 1)
    assert needs.gammas[64] == (0, 1)
    assert needs.self_paced
    assert not needs.signals


def test_only_the_routed_slot_learns() -> None:
    policy = EmaTiers.sglang()
    for _ in range(40):
        feed(policy, [7])
    assert policy.gamma_at(1) == 7
    assert policy.gamma_at(32) == 1


def test_learns_by_the_rows_of_the_report_ended_ones_included() -> None:
    policy = one_tier(3)
    policy.learn(view(1), policy.decide(view(1)), report([3, 0], 3, live=[True, False]))
    assert policy.averages() == {1: 1.5}


def test_long_run_on_the_default_tiers() -> None:
    policy = EmaTiers.sglang()
    accepted = [feed(policy, [policy.gamma_at(1)]) for _ in range(25)]
    assert accepted.index(5) == 15
    assert policy.gamma_at(1) == 7
    assert policy.averages()[1] == pytest.approx(4.7815, abs=5e-5)
    rejected = [feed(policy, [0]) for _ in range(17)]
    assert [rejected.index(gamma) for gamma in (7, 3, 1)] == [0, 5, 15]


def test_probes_from_zero() -> None:
    policy = EmaTiers.sglang({"1": {"candidate_steps": [0, 1, 3]}}, initial_steps=0)
    gammas = [feed(policy, [0]) for _ in range(21)]
    assert gammas == [0] * 15 + [1] * 5 + [0]
    assert policy.averages() == {1: 0.0}


@pytest.mark.parametrize(
    "tiers",
    [
        {"ema_alpha": 0.2},
        {"1": {"candidate_steps": "bad"}},
        {"1": {"candidate_steps": []}},
        {"1": {"candidate_steps": [1, -1]}},
        {"1": {"candidate_steps": [1, 2.0]}},
        {"candidate_steps": [1], "1": {}},
    ],
)
def test_bad_configs_are_refused(tiers: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tiers.json"
    path.write_text(json.dumps(tiers), encoding="utf-8")
    for config in (tiers, path, str(path)):
        with pytest.raises(ValueError, match="batch size"):
            EmaTiers.sglang(config)


@pytest.mark.parametrize("option", [{"update_interval": 0}, {"ema_alpha": "fast"}])
def test_what_would_only_fail_while_serving_is_refused_at_once(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        EmaTiers.sglang({"1": {"candidate_steps": [1, 3]}, **option})


def test_global_options_are_inherited_and_overridden() -> None:
    tiers = {
        "up_hysteresis": 0.75,
        "specplane": {"ignored": True},
        "1": {"candidate_steps": [1, 3], **AT_ONCE},
        "8": {"candidate_steps": [1, 3], **AT_ONCE, "up_hysteresis": 0.0},
    }
    policy = EmaTiers.sglang(tiers, initial_steps=1)
    feed(policy, [1])
    feed(policy, [1] * 8)
    assert [policy.gamma_at(size) for size in (1, 8)] == [1, 3]


def test_clone_has_the_parameters_and_none_of_the_state() -> None:
    policy = EmaTiers.sglang({"1": {"candidate_steps": [1, 3, 7], **AT_ONCE}}, 1, [4, 8])
    feed(policy, [1])
    twin = policy.clone()
    assert isinstance(twin, Policy)
    assert (policy.gamma_at(1), twin.gamma_at(1)) == (3, 1)
    assert twin.graph_batch_sizes == (4, 8)
    assert [feed(twin, [count]) for count in (1, 3, 0, 0)] == [1, 3, 7, 1]
