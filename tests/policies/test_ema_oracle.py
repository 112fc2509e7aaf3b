"""`EmaTiers.sglang` against SGLang's own class, run from its released wheel: equal to the bit, state and all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sglang_oracle import Oracle, OracleUnavailableError, load
from policies import EmaTiers
from policies.ema_ladder import SGLANG_TIERS, parse_tiers
from tests.policies.steps import report, view

OPTIONS = {
    "ema_alpha": st.sampled_from([0, 0.1, 0.2, 0.5, 1]) | st.floats(0, 1),
    "update_interval": st.integers(1, 6),
    "warmup_batches": st.integers(0, 12),
    "down_hysteresis": st.sampled_from([-0.75, -0.25, 0, 0.0, 0.5]) | st.floats(-2, 1),
    "up_hysteresis": st.sampled_from([0, 0.5, 0.75]) | st.floats(-1, 2),
    "ceiling_coeff": st.sampled_from([0, 0, 1.0, 1.2]) | st.floats(0, 3),
}
STEPS = st.lists(st.integers(0, 12), min_size=1, max_size=6)
BOUNDS = st.sampled_from([0, 1, 2, 4, 8, 16])


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=OPTIONS))
    for bound in draw(st.lists(BOUNDS, min_size=1, max_size=4)):
        slot = draw(st.fixed_dictionaries({"candidate_steps": STEPS}, optional=OPTIONS))
        config[draw(st.sampled_from(["", "0"])) + str(bound)] = slot
    config["somebody_elses_key"] = {"candidate_steps": "ignored"}
    return config


@st.composite
def traces(draw: st.DrawFn) -> list[list[int]]:
    """Runs of reports: a batch size and an acceptance level that both hold for a while; empty reports between."""
    trace: list[list[int]] = []
    for _ in range(draw(st.integers(1, 8))):
        batch = draw(st.integers(0, 24))
        most = draw(st.integers(0, 13))
        trace += draw(
            st.lists(
                st.lists(st.integers(0, most), min_size=batch, max_size=batch) | st.just([most] * batch), max_size=30
            )
        )
    return trace


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    before = set(sys.modules)
    try:
        loaded = load()
    except OracleUnavailableError as error:
        pytest.skip(str(error))
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] == "sglang"}
    return loaded


@settings(max_examples=300, deadline=None)
@given(config=configs(), trace=traces(), start=st.integers(0, 12), graphs=st.none() | st.sets(st.integers(1, 20)))
def test_equal_to_the_bit(
    oracle: Oracle,
    tmp_path_factory: pytest.TempPathFactory,
    config: dict[str, Any],
    trace: list[list[int]],
    start: int,
    graphs: set[int] | None,
) -> None:
    path = tmp_path_factory.getbasetemp() / "sglang_tiers.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    theirs = oracle.params(start, str(path))
    theirs.set_cuda_graph_bs(list(graphs) if graphs else None)
    ours = EmaTiers.sglang(path, initial_steps=start, graph_batch_sizes=list(graphs) if graphs else None)
    for step, counts in enumerate(trace):
        before = view(len(counts), step)
        decision = ours.decide(before)
        assert decision.gamma == theirs.get_steps_for_batch(len(counts))
        theirs.on_verify_complete(counts, len(counts))
        ours.learn(before, decision, report(counts, decision.gamma, step=step))
        slots = theirs._slots
        averages = {bound: average.hex() for bound, average in ours.averages().items()}
        assert averages == {bound: float(slot.ema_accept_len).hex() for bound, slot in slots.items()}
        assert {bound: ours.gamma_at(bound) for bound in slots if not graphs} == {
            bound: slot.current_steps for bound, slot in slots.items() if not graphs
        }


@settings(max_examples=100, deadline=None)
@given(
    entry=st.one_of(
        st.none(),
        st.lists(st.sampled_from([0, 1, 3, -1, True, 2.0, "3", None]), max_size=3),
        st.sampled_from(["bad", 3]),
    ),
    name=st.sampled_from(["1", "0", "slot", "-1"]),
)
def test_refuses_and_accepts_the_same_files(
    oracle: Oracle, tmp_path_factory: pytest.TempPathFactory, entry: object, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "sglang_entry.json"
    path.write_text(json.dumps({name: {"candidate_steps": entry}, "ema_alpha": 0.5}), encoding="utf-8")
    try:
        expected = oracle.candidates(str(path))
    except ValueError:
        with pytest.raises(ValueError, match="batch size"):
            EmaTiers.sglang(path)
    else:
        assert EmaTiers.sglang(path).start == expected[len(expected) // 2]


def test_same_defaults(oracle: Oracle) -> None:
    assert parse_tiers(SGLANG_TIERS) == parse_tiers(oracle.default_config)
    union = oracle.candidates(None)
    assert EmaTiers.sglang().start == union[len(union) // 2]


def test_the_wheel_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from bench import sglang_oracle

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = sglang_oracle.cache_folder() / sglang_oracle.WHEEL
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"not the wheel")
    with pytest.raises(ValueError, match=r"sha256 .* expected"):
        load()
