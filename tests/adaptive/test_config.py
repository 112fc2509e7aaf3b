from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaptive.config import Config
from policies import AdaSD, AdaSpec, EmaTiers, Fixed, FixedTree, Relaxed, Schedule
from policies.cost import StepCost
from tests.rules.project import ROOT

EXAMPLES = sorted((ROOT / "examples/configs").iterdir())
COST = StepCost((1, 0, 0, 0), (1, 0, 0, 0, 0), (1, 0, 0), error=0.1)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ADAPTIVE_")]:
        monkeypatch.delenv(name)


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, text: str, name: str = "run.yaml") -> Config:
    return Config.load(written(folder, text, name))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_right(path: Path) -> None:
    config = Config.load(path)
    assert config.build_policy() is not None
    assert path.read_text(encoding="utf-8").count("#") > 5, "examples explain themselves"


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    yaml = (
        "model: m\nengine: {max_batch: 4, max_tree_nodes: 9}\npolicy: {kind: fixed, gamma: 3}\n"
        "slo: {tpot_ms: 50, classes: {code: 20}}\n"
    )
    toml = (
        'model = "m"\nengine.max_batch = 4\nengine.max_tree_nodes = 9\npolicy = {kind = "fixed", gamma = 3}\n'
        "[slo]\ntpot_ms = 50\nclasses.code = 20\n"
    )
    one, other = loaded(tmp_path, yaml), loaded(tmp_path, toml, "run.toml")
    assert one.model_dump() == other.model_dump()
    assert one.slo.build().limit_ms("code") == 20
    assert one.options() == {"model": "m", "max_batch": 4, "max_tree_nodes": 9}


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    config = loaded(tmp_path, "# nothing\n")
    assert config.options() == {}
    assert config.build_policy() is None
    assert config.label == "none"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("modle: x\n", ["unknown key 'modle'", "did you mean 'model'"]),
        ("engine: {max_bach: 3}\n", ["unknown key 'engine.max_bach'", "'max_batch'"]),
        ("policy: {kind: adaspec, max_gama: 3}\n", ["unknown key 'policy.max_gama'", "'max_gamma'"]),
        ("policy: {kind: adaspect}\n", ["policy", "adaspect"]),
        ("engine: {max_batch: 0}\n", ["engine.max_batch=0"]),
        ("slo: {tpot_ms: -1, classes: {code: 0}}\n", ["slo.tpot_ms=-1", "slo.classes.code=0"]),
        ("model: [\n", ["not valid YAML"]),
        ("- a\n", ["keys and values"]),
        ("policy: {kind: fixed}\n", ["policy.gamma", "required"]),
    ],
)
def test_mistakes_are_named(text: str, problems: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.yaml") as caught:
        loaded(tmp_path, text)
    for problem in problems:
        assert problem in str(caught.value)


def test_other_endings_and_bad_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.yaml, \.yml or \.toml"):
        loaded(tmp_path, "{}", "run.json")
    with pytest.raises(ValueError, match="not valid TOML"):
        loaded(tmp_path, "a = ", "run.toml")


def test_every_policy_is_built_with_its_parameters(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("[[1, 8, 2]]")
    COST.save(tmp_path / "cost.json")

    def built(text: str) -> object:
        return loaded(tmp_path, f"policy: {text}\n").build_policy()

    fixed, named = built("{kind: fixed, gamma: 3}"), built("fixed:5")
    assert isinstance(fixed, Fixed)
    assert isinstance(named, Fixed)
    assert (fixed.gamma, named.gamma) == (3, 5)
    tree = built("{kind: fixed-tree, parents: [-1, -1, 0]}")
    assert isinstance(tree, FixedTree)
    assert tree.parents == (-1, -1, 0)
    table, inline = built("{kind: schedule, table: table.json}"), built("{kind: schedule, table: [[1, 4, 5]]}")
    assert isinstance(table, Schedule)
    assert isinstance(inline, Schedule)
    assert (table.gamma_at(1), inline.gamma_at(1)) == (2, 5)
    ema, sglang = built("{kind: ema, dwell: 7}"), built('{kind: ema-sglang, config: {"1": {candidate_steps: [1]}}}')
    assert isinstance(ema, EmaTiers)
    assert isinstance(sglang, EmaTiers)
    assert (ema.pacing.dwell, sglang.gamma_at(1)) == (7, 1)
    adaspec = built("{kind: adaspec, cost: cost.json, max_gamma: 4}")
    assert isinstance(adaspec, AdaSpec)
    assert (adaspec.cost, adaspec.max_gamma) == (COST, 4)
    published = built("{kind: adaspec, cost: llama-8b-h100-eagle}")
    assert isinstance(published, AdaSpec)
    adasd = built("{kind: adasd, generation_only: true, window: 9}")
    assert isinstance(adasd, AdaSD)
    assert (adasd.generation_only, adasd.window) == (True, 9)


def test_a_rule_goes_around_the_policy(tmp_path: Path) -> None:
    rule = "acceptance: {kind: typical, params: {epsilon: 0.2}}\n"
    config = loaded(tmp_path, "policy: fixed:3\n" + rule)
    policy = config.build_policy()
    assert isinstance(policy, Relaxed)
    assert isinstance(policy.policy, Fixed)
    assert (config.label, policy.kind, policy.params) == ("fixed:3+typical", "typical", {"epsilon": 0.2})
    with pytest.raises(ValueError, match="typical needs a policy in the same file"):
        loaded(tmp_path, rule).build_policy()
    with pytest.raises(ValueError, match=r"acceptance\.kind"):
        loaded(tmp_path, "acceptance: {kind: typicle}\n")
    with pytest.raises(ValueError, match="no parameter 'alpha'"):
        loaded(tmp_path, "policy: ema\nacceptance: {kind: typical, params: {alpha: 1}}\n").build_policy()


def test_defaults_in_the_file_are_those_of_the_classes(tmp_path: Path) -> None:
    for kind, make in (("ema", EmaTiers), ("adaspec", AdaSpec), ("adasd", AdaSD)):
        built = loaded(tmp_path, f"policy: {{kind: {kind}}}\n").build_policy()
        expected = make()
        public = [name for name in vars(expected) if not name.startswith("_")]
        assert {name: getattr(built, name) for name in public} == {name: getattr(expected, name) for name in public}


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "model: file\nengine: {max_batch: 2, threads: 3}\npolicy: {kind: adaspec, max_gamma: 2}\n")
    monkeypatch.setenv("ADAPTIVE_MODEL", "environment")
    monkeypatch.setenv("ADAPTIVE_ENGINE__MAX_BATCH", "5")
    monkeypatch.setenv("ADAPTIVE_POLICY__MAX_GAMMA", "6")
    monkeypatch.setenv("ADAPTIVE_PLUGINS", "none")  # not a setting of the file, and none of its business
    config = Config.load(path)
    assert config.options() == {"model": "environment", "max_batch": 5, "threads": 3}
    policy = config.build_policy()
    assert isinstance(policy, AdaSpec)
    assert policy.max_gamma == 6


def test_a_policy_can_be_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_POLICY", "fixed:4")
    assert loaded(tmp_path, "model: m\n").label == "fixed:4"
