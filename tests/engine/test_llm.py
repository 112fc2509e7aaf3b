"""From names to an engine: which drafter, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive import AdaptiveController
from adaptive.requests import Sampling
from engine import load_engine
from engine.drafters import ModelDrafter, NgramDrafter
from engine.drafters.shipped import METHODS
from policies import Fixed
from tests.engine.gguf_files import CONTEXT, TinyGguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyGguf().write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other kinds of layers, the same tokenizer."""
    return TinyGguf(arch="qwen2", tied=False).write(tmp_path_factory.mktemp("model") / "other.gguf")


def test_itself_as_drafter_shares_its_weights(model: Path) -> None:
    engine = load_engine(model, drafter="model", draft_model=model, max_batch=2, max_gamma=4)
    assert isinstance(engine.drafter, ModelDrafter)
    assert engine.drafter._decoder is engine.decoder
    assert engine.drafter.limit == CONTEXT


def test_another_model_drafts(model: Path, other: Path) -> None:
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    plain = AdaptiveController(load_engine(model, drafter=None, max_batch=1), policy=Fixed(0))
    engine = load_engine(model, drafter="model", draft_model=other, max_batch=1)
    drafted = AdaptiveController(engine, policy=Fixed(3))
    assert isinstance(engine.drafter, ModelDrafter)
    assert engine.drafter._decoder is not engine.decoder
    assert drafted.generate(["hello world"], sampling)[0].tokens == plain.generate(["hello world"], sampling)[0].tokens


@pytest.mark.parametrize("drafter", ["model", None])
def test_only_copying_spans_outputs(drafter: str | None) -> None:
    with pytest.raises(ValueError, match="only drafter='ngram' copies earlier outputs"):
        load_engine("nowhere.gguf", drafter=drafter, draft_model="x" if drafter else None, span_outputs=True)


def test_spanning_outputs_is_off_unless_asked_for(model: Path) -> None:
    found = [load_engine(model, max_batch=2), load_engine(model, max_batch=2, span_outputs=True)]
    pools = [engine.drafter.pool for engine in found if isinstance(engine.drafter, NgramDrafter)]
    assert pools[0] is None
    assert pools[1] is not None


@pytest.mark.parametrize(
    ("drafter", "draft_model", "message"),
    [
        ("oracle", None, "drafter='oracle' is unknown: choose one of ngram, model, eagle1, .*mtp, or none"),
        ("ngram", "smollm2-135m", "draft_model='smollm2-135m' goes with .*model.*, not with drafter='ngram'"),
        (None, "smollm2-135m", "draft_model='smollm2-135m' goes with .*model.*, not with drafter='none'"),
    ],
)
def test_drafters_that_do_not_go_together(drafter: str | None, draft_model: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_engine("nowhere.gguf", drafter=drafter, draft_model=draft_model)


@pytest.mark.parametrize("drafter", METHODS)
def test_a_model_that_no_drafter_was_made_for(model: Path, drafter: str) -> None:
    with pytest.raises(ValueError, match=f"no drafter='{drafter}' for .* comes with the package"):
        load_engine(model, drafter=drafter)
