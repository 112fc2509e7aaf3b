"""What a step takes while it runs, counted without running it on data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import load_engine, plan_engine
from engine.drafters.head_format import Kind
from engine.memory import plan_memory
from engine.models.source import open_model
from engine.sketch import sketch
from engine.step_memory import LiveBytes, largest_step
from tests.engine.gguf_files import TinyGguf
from tests.engine.heads import HeadSpec, write_heads

SIZES: dict[str, Any] = {"max_batch": 4, "context_len": 100, "max_gamma": 4, "dtype": "float64"}
KINDS: tuple[Kind, ...] = ("eagle1", "eagle3", "medusa", "mtp", "draft")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyGguf().write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.mark.parametrize("drafter", ["none", "ngram", *KINDS])
def test_a_sketch_tells_what_a_real_step_takes(model: Path, tmp_path: Path, drafter: str) -> None:
    options = dict(SIZES)
    if drafter in KINDS:
        kind: Kind = next(kind for kind in KINDS if kind == drafter)
        count = 1 if kind.startswith("eagle") else 2
        spec = HeadSpec(kind, open_model(model).config, ids=tuple(range(3, 80)), count=count)
        options |= {"drafter": "model" if kind == "draft" else kind, "draft_model": write_heads(tmp_path, spec)}
    else:
        options["drafter"] = None if drafter == "none" else drafter
    drawn, real = sketch(plan_engine(model, **options)), load_engine(model, **options)
    for batch in (1, 3, 4):
        planned, taken = largest_step(drawn, batch), largest_step(real, batch)
        print(f"\n{drafter}, batch {batch}: {planned} bytes planned, {taken} taken")
        assert planned == pytest.approx(taken, rel=0.1)
    assert largest_step(drawn, 4) > largest_step(drawn, 1)
    assert largest_step(drawn, 3) == largest_step(drawn, 4), "three requests run in a bucket of four"


def test_a_plan_has_the_steps_asked_for(model: Path) -> None:
    plan = plan_engine(model, **SIZES)
    assert plan_memory([plan]).steps == ({},)
    (steps,) = plan_memory([plan, plan], [1, 4]).steps[:1]
    assert list(steps) == [1, 4]


def test_only_what_is_alive_at_once_counts() -> None:
    standing = torch.zeros(100, dtype=torch.float64)
    live = LiveBytes({standing.untyped_storage()._cdata})
    with live:
        first = standing + 1
        view = first[:10]
        del first
        second = view + standing[:10]  # what the view needs is still there
        standing.add_(1)
        view.add_(1)
        del view, second
        third = standing * 2
    assert live.peak == 800 + 80
    assert third.nbytes == 800
