from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from adaptive import registry
from adaptive.registry import get_policy, list_policies
from policies import EmaTiers, Fixed, FixedTree, Schedule


class Third(Fixed):
    """A policy from somewhere else.

    More about it.
    """

    def __init__(self, argument: str = "7") -> None:
        super().__init__(int(argument))


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        (
            EntryPoint("third", "tests.adaptive.test_registry:Third", registry.GROUP),
            EntryPoint("broken", "tests.adaptive.nowhere:Gone", registry.GROUP),
            EntryPoint("ema", "tests.adaptive.test_registry:Third", registry.GROUP),
        )
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.delenv(registry.ALLOW_LIST, raising=False)


def test_built_in_names() -> None:
    fixed, ema = get_policy("fixed:3"), get_policy("ema")
    assert isinstance(fixed, Fixed)
    assert fixed.gamma == 3
    assert isinstance(ema, EmaTiers)
    assert ema.credit
    sglang = get_policy("ema-sglang")
    assert isinstance(sglang, EmaTiers)
    assert not sglang.credit


def test_trees_are_named_by_their_branching() -> None:
    tree = get_policy("fixed-tree:2x1")
    assert isinstance(tree, FixedTree)
    assert tree.parents == (-1, -1, 0, 1)


@pytest.mark.parametrize("argument", ["", "2x", "0", "2x0", "-1", "2,1"])
def test_a_branching_that_is_none_is_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=f"fixed-tree:{argument}.*fixed-tree:3x2x1"):
        get_policy(f"fixed-tree:{argument}")


def test_schedule_from_text_and_file(tmp_path: Path) -> None:
    table = "[[1, 4, 5], [5, 64, 2]]"
    (tmp_path / "table.json").write_text(table)
    for argument in (table, str(tmp_path / "table.json")):
        policy = get_policy(f"schedule:{argument}")
        assert isinstance(policy, Schedule)
        assert policy.gamma_at(5) == 2


def test_ema_sglang_reads_its_file(tmp_path: Path) -> None:
    (tmp_path / "sglang.json").write_text('{"1": {"candidate_steps": [1, 5]}}')
    policy = get_policy(f"ema-sglang:{tmp_path / 'sglang.json'}")
    assert isinstance(policy, EmaTiers)
    assert policy.gamma_at(1) in (1, 5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("emma", "choose from adasd, adaspec, ema, ema-sglang, fixed, fixed-tree, schedule"),
        ("", "is not known"),
        ("fixed", "fixed:K"),
        ("fixed:-1", "fixed:K"),
        ("fixed:three", "fixed:K"),
        ("ema:3", "no argument"),
        ("schedule", "schedule:FILE"),
        ("schedule:[[2, 4, 5]]", "must start at 1"),
    ],
)
def test_mistakes_name_the_fix(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_policy(spec)


def test_plugins_are_found_listed_and_given_their_argument(plugins: None, caplog: pytest.LogCaptureFixture) -> None:
    third, other = get_policy("third"), get_policy("third:2")
    assert isinstance(third, Third)
    assert isinstance(other, Third)
    assert (third.gamma, other.gamma) == (7, 2)
    with caplog.at_level(logging.WARNING):
        entries = list_policies()
    names = ["fixed", "fixed-tree", "schedule", "ema", "ema-sglang", "adaspec", "adasd", "third"]
    assert [entry.name for entry in entries] == names
    assert entries[-1].description == "A policy from somewhere else."
    assert "'broken'" in caplog.text


def test_broken_plugin_is_reported_when_named(plugins: None) -> None:
    with pytest.raises(ValueError, match=r"nowhere:Gone.*failed to load"):
        get_policy("broken")


def test_built_in_names_can_not_be_taken(plugins: None) -> None:
    assert isinstance(get_policy("ema"), EmaTiers)


def test_allow_list_restricts_plugins(plugins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.ALLOW_LIST, "other, another")
    with pytest.raises(ValueError, match="'third' is not known"):
        get_policy("third")
    monkeypatch.setenv(registry.ALLOW_LIST, "other, third")
    assert isinstance(get_policy("third"), Third)


def test_every_entry_says_what_it_does() -> None:
    for entry in list_policies():
        assert entry.usage.startswith(entry.name)
        assert 10 < len(entry.description) < 100
