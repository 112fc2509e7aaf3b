from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from bench.forward.bed import Bed, Point
from bench.forward.claims import Verdict, make_claims, points_of
from bench.forward.cli import main
from bench.forward.floors import Work, make_probes, verify_work
from bench.forward.measure import Timings, measure, point_cost, rate, ratio
from bench.forward.models import SHAPES
from bench.forward.timing import Spread, seconds
from engine import EngineConfig
from engine.models.decoder import Decoder
from tests.engine.tiny import TINY, UNTIED, random_weights, reference_logits
from tests.rules.project import ROOT

CONTEXT = 32


@pytest.fixture(scope="module")
def bed() -> Bed:
    config = EngineConfig(max_batch=8, context_len=CONTEXT, max_gamma=7, dtype="float64")
    return Bed(Decoder(TINY, random_weights(TINY), CONTEXT, "cpu"), config)


# --- shapes ---------------------------------------------------------------------------------------------------------


def test_ragged_lengths_are_the_most_unequal_of_that_sum() -> None:
    assert Point.ragged(8, 20, 8, 64).tokens == (8, 6, 1, 1, 1, 1, 1, 1)
    assert Point.ragged(3, 3, 8, 64).tokens == (1, 1, 1)
    assert Point.ragged(3, 24, 8, 64) == Point.rectangle(3, 8, 64)
    with pytest.raises(ValueError, match="total=25 must be from batch=3"):
        Point.ragged(3, 25, 8, 64)


def test_a_point_fills_its_context_bucket() -> None:
    point = Point.ragged(2, 6, 4, 32)
    assert (point.key.batch, point.key.gamma, point.key.verify_tokens, point.key.context) == (2, 3, 6, 32)
    assert point.length - 1 + point.width == 32


def test_the_claims_compare_what_they_say() -> None:
    claims = make_claims(512)
    assert [(sum(claim.above.tokens), sum(claim.below.tokens)) for claim in claims] == [(16, 16), (32, 32), (20, 64)]
    assert [claim.limit for claim in claims] == [1.15, 1.15, 0.6]
    assert {(len(point.tokens), point.context) for point in points_of(claims)} == {(8, 512)}
    assert all(max(claim.above.tokens) == 8 == claim.above.width for claim in claims)
    assert Verdict(claims[0], Spread(1.1, 0.9, 1.3)).met
    assert not Verdict(claims[2], Spread(0.61, 0.5, 0.9)).met


# --- the piece ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [Point.rectangle(2, 3, 16), Point.ragged(3, 9, 5, 32), Point.rectangle(1, 1, 16)])
def test_the_piece_verifies_each_rows_own_tokens(bed: Bed, point: Point) -> None:
    """With a cache that holds what the rows' tokens say, the logits are those of the whole texts."""
    engine, weights = bed._engine, random_weights(TINY)
    texts = torch.randint(
        TINY.vocab_size, (len(point.tokens), point.context), generator=torch.Generator().manual_seed(1)
    )
    engine.state.history_RP[: len(point.tokens), : point.context] = texts
    for row, text in enumerate(texts):
        for start in range(point.length - 1):
            engine.runner.prefill(row, start, 1)
        drafts = text[point.length :]
        engine.state.drafts_RM[row, : len(drafts)] = drafts
    bed.aim(point)()
    expected = []
    for tokens, text in zip(point.tokens, texts.tolist(), strict=True):
        expected.append(reference_logits(TINY, weights, text[: point.length - 1 + tokens])[-tokens:])
    step = engine.runner._step
    torch.testing.assert_close(step.logits_NV[: sum(point.tokens)], torch.cat(expected))


def test_rows_that_would_verify_something_else_are_noticed(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed._engine.state, "available", lambda batch: torch.zeros(batch, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=r"were to verify \[2, 2\] draft tokens, and would verify \[0, 0\]"):
        bed.aim(Point.rectangle(2, 3, 16))


def test_no_cache_page_is_untouched(bed: Bed) -> None:
    kv = bed._engine.kv
    assert all(float(half.abs().sum(dim=(0, 2)).min()) > 0 for half in (*kv.keys, *kv.values))


# --- floors ---------------------------------------------------------------------------------------------------------


def test_work_by_hand() -> None:
    """One layer's products: 16 · (2 · 16 + 2 · 8 + 3 · 24) weights; the head: 11 · 16."""
    products = 2 * 16 * (32 + 16 + 72) + 11 * 16
    one = verify_work(TINY, 8, [5], [1])
    assert one.num_flops == 2 * products + 4 * 2 * 16 * 5
    assert one.num_bytes == 8 * (TINY.num_parameters() + 2 * 2 * 8 * 5)
    two = verify_work(TINY, 8, [5, 9], [1, 3])
    assert two.num_flops == 2 * products * 4 + 4 * 2 * 16 * (5 + 9 + 10 + 11)
    assert two.num_bytes == 8 * (TINY.num_parameters() + 2 * 2 * 8 * (5 + 11))


def test_an_untied_input_embedding_is_not_streamed() -> None:
    assert verify_work(UNTIED, 4, [5], [1]).num_bytes == verify_work(TINY, 4, [5], [1]).num_bytes


def test_the_larger_floor_counts() -> None:
    assert Work(100, 100).floor(10.0, 50.0) == (10.0, "bytes")
    assert Work(100, 100).floor(50.0, 10.0) == (10.0, "flops")


def test_probes_move_what_they_say() -> None:
    probes = make_probes("cpu", torch.float32, 1, 32)
    assert {(probe.kind, probe.amount) for probe in probes} == {("bytes", 1 << 20), ("flops", 2 * 32**3)}
    assert all(seconds(probe.call, "cpu") > 0 for probe in probes)


# --- measurement ----------------------------------------------------------------------------------------------------


def test_every_round_has_every_point_once_and_the_first_does_not_count(bed: Bed) -> None:
    points, told = [Point.rectangle(2, 1, 16), Point.rectangle(2, 3, 16)], list[str]()
    probes = make_probes("cpu", torch.float64, 1, 8)
    timings = measure(bed, points, probes, 3, told.append)
    assert told == ["warm-up", "round 1 of 3", "round 2 of 3", "round 3 of 3"]
    assert {point: len(times) for point, times in timings.points.items()} == dict.fromkeys(points, 3)
    assert {len(times) for times in timings.probes.values()} == {3}


def test_ratios_are_paired_within_a_round_and_the_fastest_probe_counts(bed: Bed) -> None:
    point, other = Point.rectangle(2, 1, 16), Point.rectangle(2, 3, 16)
    probes = make_probes("cpu", torch.float64, 1, 8)
    work = bed.work(point)
    slow, fast = 2.0, 1.0
    timings = Timings(
        points={point: [1.0, 2.0, 4.0], other: [2.0, 4.0, 4.0]},
        probes={"sum": [fast] * 3, "matrix × vector": [slow] * 3, "matmul": [1e-9] * 3, "linear": [2e-9] * 3},
    )
    read, multiply = rate(probes, timings, "bytes"), rate(probes, timings, "flops")
    assert (read.by, multiply.by) == ("sum", "matmul")
    assert read.per_round == (float(1 << 20),) * 3
    cost = point_cost(bed, point, timings, read, multiply)
    assert cost.bound == "bytes"
    assert cost.floor == pytest.approx(work.num_bytes / (1 << 20))
    assert cost.ratio.median == pytest.approx(2.0 / cost.floor)
    assert ratio(timings, point, other).median == 0.5


# --- the command ----------------------------------------------------------------------------------------------------

TINY_RUN = ("--random", "tiny", "--batches", "1,2", "--tokens", "1,3", "--contexts", "16,32", "--rounds", "2")
SMALL_PROBES = ("--probe-mib", "1", "--probe-size", "16")


def invoke(*args: object) -> Result:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "160", "TERM": "dumb"})


def test_tables_and_json(tmp_path: Path) -> None:
    target = tmp_path / "engine.json"
    ended = invoke(*TINY_RUN, *SMALL_PROBES, "--json", target)
    assert ended.exit_code == 0, ended.output
    assert "floors: memory is read at" in ended.output
    assert "20 tokens (8 6 1 1 1 1 1 1) / the full γ = 7 rectangle of 64" in ended.output
    record: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    shapes = [(one["batch"], one["tokens_per_row"], one["context"], one["verify_tokens"]) for one in record["points"]]
    assert shapes == [(b, t, c, b * t) for b in (1, 2) for t in (1, 3) for c in (16, 32)]
    assert all(one["ms"]["p10"] <= one["ms"]["median"] <= one["ms"]["p90"] for one in record["points"])
    assert all(one["ratio"]["median"] > 0 and one["floor_ms"] >= 0 for one in record["points"])
    assert [claim["limit"] for claim in record["claims"]] == [1.15, 1.15, 0.6]
    assert record["machine"]["engine"]["model"] == "random tiny"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--tokens", "x"), "--tokens: 'x' is not a list of whole numbers"),
        (("--batches", "0"), "--batches: '0' is not a list of whole numbers from 1"),
        (("--contexts", "4"), "--contexts: 4 is too short for 8 tokens a row"),
        (("--random", "huge"), "shape 'huge' is not known: choose from tiny"),
        (("--random", "tiny", "--contexts", "1024"), "above the model's own limit of 512"),
        (("--model", "no-such-model"), "no model file at 'no-such-model'"),
        (("--random", "tiny", "--dtype", "int4"), "dtype='int4' is not valid"),
        (("--json", "/no/such/folder/x.json"), "is not there"),
    ],
)
def test_usage_errors_end_with_2(args: Sequence[str], message: str) -> None:
    ended = invoke(*args)
    assert ended.exit_code == 2
    assert message in " ".join(ended.output.replace("│", " ").split())


@pytest.mark.parametrize("script", ["engine", "gpu", "controller_overhead", "peers"])
def test_scripts_run_by_path_find_the_package_and_not_this_file(script: str, tmp_path: Path) -> None:
    """`bench/engine.py` is what `import engine` finds first when a script of its folder is run by its path."""
    command = [sys.executable, str(ROOT / "bench" / f"{script}.py"), "--help"]
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_random_shapes_are_whole() -> None:
    assert round(SHAPES["smollm2-135m"].num_parameters() / 1e6) == 135
    assert round(SHAPES["llama-3.2-1b"].num_parameters() / 1e8) == 12
    assert round(SHAPES["llama-3.1-8b"].num_parameters() / 1e8) == 80
