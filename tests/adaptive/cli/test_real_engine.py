"""The commands around the bundled engine: a tiny random model out of a GGUF file, nothing replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from adaptive.cli.options import DRAFTERS
from engine.llm import DRAFTERS as ENGINE_DRAFTERS
from tests.adaptive.cli.conftest import Cli
from tests.engine.gguf_files import CONTEXT, TinyGguf

ARGS = ("--threads", 1, "--seed", 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyGguf().write(tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_every_drafter_of_the_engine_can_be_named() -> None:
    assert set(DRAFTERS) == {*ENGINE_DRAFTERS, "none"}


def test_the_policy_changes_the_steps_and_not_the_tokens(cli: Cli, model: Path, prompt_file: Path) -> None:
    def generate(policy: str, drafter: str = "ngram") -> list[dict[str, object]]:
        ended = cli(
            *("generate", "--prompts", prompt_file, "--model", model, "--policy", policy, "--drafter", drafter),
            *("--max-tokens", 24, "--ignore-eos", "--max-batch", 2, "--json", *ARGS),
        )
        assert ended.code == 0, ended.err
        return ended.lines()

    plain, drafted = generate("fixed:0", "none"), generate("fixed:4")
    assert [one["tokens"] for one in plain] == [one["tokens"] for one in drafted]
    assert [one["steps"] for one in plain] == [24, 24, 24]
    assert all(one["drafted"] == 0 and one["alpha"] is None for one in plain)
    assert any(one["drafted"] for one in drafted)


def test_with_itself_as_draft_model_every_greedy_draft_stands(cli: Cli, model: Path, prompt_file: Path) -> None:
    ended = cli(
        *("generate", "--prompts", prompt_file, "--model", model, "--policy", "fixed:4", "--max-tokens", 24),
        *("--drafter", "model", "--draft-model", model, "--ignore-eos", "--max-batch", 2, "--json", *ARGS),
    )
    assert ended.code == 0, ended.err
    assert [one["alpha"] for one in ended.lines()] == [1.0] * 3
    assert [one["steps"] for one in ended.lines()] == [5] * 3


def test_without_a_drafter_there_is_nothing_to_draft(cli: Cli, model: Path) -> None:
    ended = cli("generate", "--prompt", "x", "--model", model, "--drafter", "none", "--policy", "fixed:3", *ARGS)
    assert ended.code == 2
    assert "gamma=3 is not offered" in ended.err


def test_a_prompt_longer_than_the_context(cli: Cli, model: Path) -> None:
    ended = cli("generate", "--prompt", "word " * CONTEXT, "--model", model, *ARGS)
    assert (ended.code, ended.out) == (2, "")
    assert "prompt '1'" in ended.err.splitlines()[-1]
    assert str(CONTEXT - 1) in ended.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--context", 5), "must have 1 to 4 (one is left to answer): shorten it or raise --context"),
        (("--context", 1), "--context 1 is not valid: it must be at least 2"),
        (("--context", 4096), "--context 4096 is above the model's own limit"),
        (("--device", "cuda"), "--device cuda is not valid: it must be cpu: torch finds no CUDA device here"),
        (("--drafter", "eagle3"), "no --drafter eagle3 for"),
        (
            ("--drafter", "model"),
            "name yours by --draft-model FOLDER, or train one with `adaptive train --method draft",
        ),
        (("--policy", "fixed:40"), "gamma=40 is not offered"),
        (("--policy", "adasd"), "does not tell its entropy"),
    ],
)
def test_what_no_engine_can_do_is_refused_in_the_command_lines_words(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[object, ...], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = cli("generate", "--prompt", "long enough", "--model", model, *args, *ARGS)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert ("Memory" in ended.err) == (args[1] == 5), "only a prompt's length is found out after loading"


def test_what_will_be_taken_is_said_first(cli: Cli, model: Path) -> None:
    ended = cli("generate", "--prompt", "x", "--model", model, "--max-tokens", 2, "--max-batch", 3, *ARGS)
    line = next(line for line in ended.err.splitlines() if line.startswith("Memory in MiB"))
    assert "target weights 0." in line
    assert "target KV cache 0." in line
    assert "a step at batch 3 " in line


def test_a_folder_and_a_revision(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from engine.models.hf_tokenizer import load_tokenizer
    from tests.engine.models.hf_folders import write_folder

    folder = write_folder(tmp_path, "qwen3")
    tokenizer = load_tokenizer(folder)
    chat = tokenizer.apply_chat([{"role": "user", "content": "hello"}])
    (record,) = cli("generate", "--prompt", "hello", "--model", folder, "--max-tokens", 8, "--json", *ARGS).lines()
    assert record["prompt_tokens"] == len(tokenizer.encode(chat))
    ended = cli("generate", "--prompt", "x", "--model", folder, "--revision", "v2", *ARGS)
    assert ended.code == 1
    assert "--revision v2 is for hub models only" in ended.err


def test_a_file_that_is_no_model(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "poem.gguf"
    path.write_text("roses are red", encoding="utf-8")
    ended = cli("generate", "--prompt", "x", "--model", path)
    assert ended.code == 1
    assert "poem.gguf" in ended.err
    assert "Traceback" not in ended.err


def test_bench_beside_transformers(cli: Cli, model: Path, prompt_file: Path) -> None:
    pytest.importorskip("transformers")
    ended = cli(
        *("bench", "--prompts", prompt_file, "--model", model, "--policies", "fixed:0,ema"),
        *("--peers", "transformers,transformers-lookup"),
        *("--max-tokens", 16, "--ignore-eos", "--repeat", 1, "--json", "-", *ARGS),
    )
    assert ended.code == 0, ended.err
    arms = {arm["policy"]: arm for arm in json.loads(ended.out)["arms"]}
    assert list(arms) == ["fixed:0", "ema", "transformers", "transformers-lookup"]
    assert [arm["tokens"] for arm in arms.values()] == [48] * 4
    assert [arm["mismatches"] for arm in arms.values()] == [0] * 4


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_transformers_takes_as_many_prompts_as_we_do(
    cli: Cli, model: Path, prompt_file: Path, ignore_eos: bool
) -> None:
    """Prompts of different lengths in one batch, padded on the left; answers of different lengths, where they end."""
    pytest.importorskip("transformers")
    ended = cli(
        *("bench", "--prompts", prompt_file, "--model", model, "--policies", "fixed:0", "--peers", "transformers"),
        *("--max-batch", 2, "--max-tokens", 40, "--repeat", 1, "--json", "-", *ARGS),
        *(["--ignore-eos"] if ignore_eos else []),
    )
    assert ended.code == 0, ended.err
    ours, theirs = json.loads(ended.out)["arms"]
    assert theirs["mismatches"] == 0
    assert ours["tokens"] == theirs["tokens"] <= 120
    assert (ours["tokens"] == 120) >= ignore_eos


def test_lookup_drafts_at_all(model: Path) -> None:
    pytest.importorskip("transformers")
    from adaptive.benchmark import PromptItem
    from adaptive.cli.options import engine_options
    from adaptive.cli.session import load
    from adaptive.cli.transformers_peer import transformers_arms
    from adaptive.requests import Sampling

    wanted = engine_options(str(model), None, "ngram", None, 1, None, "float32", "cpu", 1)
    engine = load(wanted)
    plain, lookup = transformers_arms(engine, ["transformers", "transformers-lookup"], wanted, 1, ignore_eos=True)
    assert (plain.batch, lookup.batch, lookup.drafter) == (1, 1, "prompt lookup")
    forward, calls = lookup.generate.model.forward, []  # type: ignore[attr-defined]

    def counted(*args: object, **options: object) -> object:
        calls.append(1)
        return forward(*args, **options)

    lookup.generate.model.forward = counted  # type: ignore[attr-defined]
    items, sampling = [PromptItem("p", [5, 6, 7] * 12)], Sampling(max_tokens=32)
    answers, passes = [], []
    for arm in (plain, lookup):
        calls.clear()
        answers.append(arm.run(items, sampling).tokens)
        passes.append(len(calls))
    assert answers[0] == answers[1]
    assert passes[1] < passes[0] == 32


def test_sampling_with_the_same_seed_is_repeatable(cli: Cli, model: Path) -> None:
    def sample(seed: int) -> list[object]:
        args = ("--temperature", 1, "--top-k", 50, "--top-p", 0.9, "--max-tokens", 12, "--policy", "fixed:2")
        ended = cli("generate", "--prompt", "x", "--model", model, *args, "--json", "--seed", seed)
        return [record["tokens"] for record in ended.lines()]

    assert sample(5) == sample(5) != sample(6)


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_limits_that_can_not_be_kept_are_told(
    cli: Cli, model: Path, prompt_file: Path, tmp_path: Path, command: str
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("policy: {kind: adaspec, cost: llama-8b-h100-ngram}\nslo: {tpot_ms: 0.01}\n", encoding="utf-8")
    args = ("--config", config, "--model", model, "--prompts", prompt_file, "--max-tokens", 8, "--threads", 1)
    ended = cli(command, *args, *(("--policies", "fixed:0,config", "--repeat", 1) if command == "bench" else ()))
    assert ended.code == 0, ended.err
    told = [line for line in ended.out.replace("\n", " ").split(". ") if "slo_infeasible" in line]
    assert len(told) == 1, "fixed:0 foresees nothing"
    assert "adaspec" in told[0]
