"""Batch-size tables: vLLM's form, its carrying over gaps, and hysteresis at the edges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive.contract import Capabilities, Policy
from policies import Schedule
from tests.policies.steps import CAPS, switches, view

TABLE = [[1, 4, 5], [9, 16, 2], [17, 32, 0]]


def gammas(policy: Schedule, sizes: list[int]) -> list[int]:
    return [policy.decide(view(size)).gamma for size in sizes]


def test_ranges_are_inclusive_and_gaps_and_the_tail_carry_on() -> None:
    assert gammas(Schedule(TABLE), [1, 4, 5, 8, 9, 16, 17, 32, 33, 500]) == [5, 5, 5, 5, 2, 2, 0, 0, 0, 0]


def test_an_empty_batch_reads_the_first_range() -> None:
    assert gammas(Schedule(TABLE), [0]) == [5]


def test_hysteresis_holds_a_range_until_the_edge_is_passed_by_more() -> None:
    policy = Schedule([[1, 4, 5], [5, 64, 0]], hysteresis=2)
    assert gammas(policy, [4, 5, 6, 7, 6, 4, 3, 2]) == [5, 5, 5, 0, 0, 0, 0, 5]


def test_hysteresis_stops_a_load_at_an_edge_from_flapping() -> None:
    load = [4, 5] * 50
    table = [[1, 4, 2], [5, 512, 0]]
    assert switches(gammas(Schedule(table), load)) == 99
    assert switches(gammas(Schedule(table, hysteresis=1), load)) == 0


def test_needs_hold_what_each_bucket_can_reach_and_no_more() -> None:
    plain = Schedule(TABLE).bind(CAPS)
    assert plain.gammas == {1: (0, 5), 2: (0, 5), 4: (0, 5), 8: (0, 5), 16: (0, 2), 32: (0,), 64: (0,)}
    assert not plain.self_paced
    paced = Schedule(TABLE, hysteresis=1).bind(CAPS)
    assert paced.gammas == {1: (0, 5), 2: (0, 5), 4: (0, 5), 8: (0, 2, 5), 16: (0, 2, 5), 32: (0, 2), 64: (0,)}
    assert paced.self_paced


@pytest.mark.parametrize("hysteresis", [0, 1, 3])
def test_needs_cover_every_decision(hysteresis: int) -> None:
    policy = Schedule(TABLE, hysteresis)
    needs = policy.bind(CAPS)
    walk = [1, 2, 9, 10, 8, 7, 17, 20, 18, 16, 15, 30, 64, 14, 12, 6, 5, 33, 3, 1]
    for size in walk:
        bucket = next(bucket for bucket in CAPS.batch_buckets if bucket >= size)
        assert policy.decide(view(size)).gamma in needs.gammas[bucket]


def test_binding_again_and_cloning_start_afresh() -> None:
    policy = Schedule([[1, 4, 5], [5, 64, 0]], hysteresis=2)
    assert gammas(policy, [4, 6]) == [5, 5]
    assert gammas(policy.clone(), [6]) == [0]
    policy.bind(CAPS)
    assert gammas(policy, [6]) == [0]


def test_gamma_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gamma=\[2, 5\] of the schedule.*\[0, 1, 3\]"):
        Schedule(TABLE).bind(Capabilities(gammas=(0, 1, 3), batch_buckets=(1,)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "at least one"),
        ({"1": 2}, "give a list"),
        ([[1, 4]], "three integers"),
        ([[1, 4, 2.5]], "three integers"),
        ([[2, 4, 1]], r"\[2, 4, 1\] must start at 1"),
        ([[1, 4, 3], [4, 8, 1]], r"\[4, 8, 1\] must start above 4"),
        ([[1, 4, 3], [9, 12, 1], [5, 8, 2]], r"\[5, 8, 2\] must start above 12"),
        ([[1, 8, 3], [9, 4, 1]], "ends before it starts"),
        ([[1, 8, -1]], "negative gamma"),
    ],
)
def test_bad_tables_are_refused(table: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(table)


def test_negative_hysteresis_is_refused() -> None:
    with pytest.raises(ValueError, match="hysteresis=-1"):
        Schedule(TABLE, hysteresis=-1)


def test_reads_json_text_a_file_and_a_whole_speculative_config(tmp_path: Path) -> None:
    bare = json.dumps(TABLE)
    config = json.dumps({"method": "ngram", "num_speculative_tokens_per_batch_size": TABLE})
    path = tmp_path / "table.json"
    path.write_text(config, encoding="utf-8")
    expected = Schedule(TABLE).table
    assert Schedule.from_json(bare).table == expected
    assert Schedule.from_json(config).table == expected
    assert Schedule.from_json(path).table == expected
    assert Schedule.from_json(str(path), hysteresis=2).hysteresis == 2


def test_json_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not valid JSON"):
        Schedule.from_json("[[1, 2")
    with pytest.raises(ValueError, match="no key"):
        Schedule.from_json('{"method": "ngram"}')


def test_is_a_policy() -> None:
    assert isinstance(Schedule(TABLE), Policy)
