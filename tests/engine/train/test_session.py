from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models.checkpoint import Checkpoint
from engine.models.source import open_model
from engine.train import session
from engine.train.asks.ask import Guard
from engine.train.corpus import Corpus
from engine.train.draft_vocab import DraftVocab
from engine.train.drafter import TrainableDrafter
from engine.train.files import load_drafter, read_tensors
from engine.train.loop import CHECKPOINT, Look
from engine.train.session import BACKBONE, TEXT, Listener, Recipe, train
from tests.engine.train.tiny_school import CONFIG, tiny_tokenizer, weights

WIDE = replace(CONFIG, context_len=640)
SENTENCE = "The ferry leaves at nine. Bring a coat, a ticket and some bread for the gulls by the pier. "


def checkpoint() -> Checkpoint:
    return Checkpoint(WIDE, weights(torch.float32), tiny_tokenizer(), "tiny")


def recipe(tmp_path: Path, **changes: object) -> Recipe:
    folder = tmp_path / "text"
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text(SENTENCE * 30, encoding="utf-8")
    (folder / "b.md").write_text(SENTENCE * 20, encoding="utf-8")
    (folder / "c.bin").write_bytes(b"\0\1\2")
    usual = Recipe(
        "medusa", "tiny", [str(folder)], tmp_path / "out", 0.03, length=32, batch_tokens=512, draft_vocab=300
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def run(wanted: Recipe) -> tuple[list[str], list[Look], object]:
    stages: list[str] = []
    looks: list[Look] = []
    outcome = train(wanted, checkpoint(), Guard(()), Listener(stages.append, looks.append, lambda share: None))
    return stages, looks, outcome


def test_a_folder_of_text_becomes_a_drafter_with_its_card(tmp_path: Path) -> None:
    wanted = recipe(tmp_path)
    _, looks, _ = run(wanted)
    names = {path.name for path in wanted.out.iterdir()}
    assert {"config.json", "model.safetensors", "README.md", CHECKPOINT, TEXT} <= names
    card = (wanted.out / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card
    assert "| held out | own text |" in card
    assert looks[-1].step > 0
    held = Corpus.load(wanted.out / TEXT).part(held_out=True)
    assert held
    assert all(one.greedy for one in held)


def test_resuming_goes_on_with_the_same_text_and_vocabulary(tmp_path: Path) -> None:
    _, first, _ = run(recipe(tmp_path))
    before = read_tensors(tmp_path / "out")
    (tmp_path / "text" / "d.txt").write_text("other text " * 400, encoding="utf-8")
    _, second, _ = run(recipe(tmp_path, resume=True, minutes=0.06))
    assert second[0].step == first[-1].step
    assert second[-1].step > first[-1].step
    after = read_tensors(tmp_path / "out")
    assert torch.equal(before["d2t"], after["d2t"])


def test_a_drafter_can_be_the_start_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Tensor]] = []

    def noted(folder: Path, drafter: TrainableDrafter) -> DraftVocab:
        vocab = load_drafter(folder, drafter)
        begun.append({name: tensor.detach().clone() for name, tensor in drafter.tensors().items()})
        return vocab

    run(recipe(tmp_path))
    trained = read_tensors(tmp_path / "out")
    monkeypatch.setattr(session, "load_drafter", noted)
    _, looks, _ = run(recipe(tmp_path, start=tmp_path / "out", out=tmp_path / "next"))
    assert looks[0].step == 0
    assert begun[0]
    for name, tensor in begun[0].items():
        assert torch.equal(tensor, trained[name].to(tensor.dtype)), name
    wrong = replace(recipe(tmp_path, start=tmp_path / "out", out=tmp_path / "third"), method="mtp")
    with pytest.raises(ValueError, match="does not hold a drafter of this kind"):
        run(wrong)


def test_the_target_can_write_the_text_itself(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, data=["self"], method="draft", answer_tokens=12, writing_rows=40, modules=12)
    run(wanted)
    tasks = Corpus.load(wanted.out / TEXT).summary()
    assert {"chat", "code", "edit"} & tasks.keys()


def test_joint_tuning_writes_a_model_that_loads(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, joint=True)
    run(wanted)
    loaded = open_model(wanted.out / BACKBONE).load(torch.float32)
    original = checkpoint()
    assert loaded.config == original.config
    assert loaded.tokenizer.encode(SENTENCE) == original.tokenizer.encode(SENTENCE)
    assert loaded.tokenizer.eos_ids == original.tokenizer.eos_ids
    chat = [{"role": "user", "content": "Hello"}]
    assert loaded.tokenizer.apply_chat(chat) == original.tokenizer.apply_chat(chat)
    moved = [
        name for name, tensor in loaded.weights.items() if not torch.allclose(tensor, original.weights[name], atol=2e-3)
    ]
    assert "model.embed_tokens.weight" not in moved
    heads = json.loads((wanted.out / "config.json").read_text())
    assert heads["architectures"] == ["MedusaModel"]
    assert not any("backbone" in name for name in read_tensors(wanted.out))


def test_what_can_not_be_learnt_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"above the model's context of 640"):
        run(recipe(tmp_path, length=700))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="holds no text"):
        run(recipe(tmp_path, data=[str(empty)]))
    (empty / "short.txt").write_text("a few words", encoding="utf-8")
    with pytest.raises(ValueError, match="too few to learn from"):
        run(recipe(tmp_path, data=[str(empty)]))
