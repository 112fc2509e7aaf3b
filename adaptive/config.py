"""A run in a file: model, drafter, policy with its parameters, promises on the time per token.

YAML or TOML. Unknown keys are refused by name. Environment variables win over the file: `ADAPTIVE_` and the key in
capitals, a double underscore for each level down (`ADAPTIVE_ENGINE__MAX_BATCH=4`, `ADAPTIVE_POLICY=ema`).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from adaptive.config_policies import STRICT, AcceptanceSection, NamedSection, PolicySection
from adaptive.contract import Policy
from adaptive.slo import Slo

ENV_PREFIX = "ADAPTIVE_"


class EngineSection(BaseModel):
    """Sizes and placement of the bundled engine; what is left out is the engine's default."""

    model_config = STRICT

    max_batch: PositiveInt | None = Field(default=None, description="Requests decoded side by side.")
    context: PositiveInt | None = Field(default=None, description="Tokens of prompt and answer per request.")
    dtype: str | None = Field(default=None, description="float32, bfloat16 or float16.")
    device: str | None = Field(default=None, description="cpu or cuda.")
    threads: PositiveInt | None = Field(default=None, description="CPU threads.")
    max_tree_nodes: NonNegativeInt | None = Field(default=None, description="Draft tokens per request in a tree.")


class DrafterSection(BaseModel):
    """What guesses tokens."""

    model_config = STRICT

    kind: str = Field(default="ngram", description="As for --drafter: ngram, model, a trained kind, or none.")
    model: str | None = Field(
        default=None, description="What drafts for kind `model`, a trained kind's folder; else the package's own."
    )


class SloSection(BaseModel):
    """Limits on the time per output token, in milliseconds."""

    model_config = STRICT

    tpot_ms: PositiveFloat | None = Field(default=None, description="For requests of no class below.")
    classes: dict[str, PositiveFloat] = Field(
        default_factory=dict, description="By class; in prompt files a prompt's task is its class."
    )

    def build(self) -> Slo:
        return Slo(self.tpot_ms, dict(self.classes))


class Config(BaseSettings):
    """Everything that `adaptive generate --config` and `adaptive bench --config` read."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )

    model: str | None = Field(
        default=None, description="A known model's name, a GGUF file, a Hugging Face folder or hub id."
    )
    revision: str | None = Field(default=None, description="Branch, tag or commit of a hub id.")
    engine: EngineSection = Field(default_factory=EngineSection)
    drafter: DrafterSection = Field(default_factory=DrafterSection)
    policy: PolicySection | None = Field(default=None, description="What decides γ; `adaptive policies` lists them.")
    acceptance: AcceptanceSection | None = Field(
        default=None, description="The rule that accepts draft tokens, where it is not the policy's own."
    )
    slo: SloSection = Field(default_factory=SloSection)
    allow_lossy: bool = Field(default=False, description="Permit acceptance rules that change the text.")

    _folder: Path = PrivateAttr(default_factory=Path)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment first, then the file."""
        return env_settings, init_settings

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a .yaml, .yml or .toml file. ValueError names every key that is wrong; OSError if it can not be read.

        Files that the policy names are looked for beside this one.
        """
        path = Path(path)
        content = _read(path)
        try:
            config = cls(**content)
        except ValidationError as error:
            raise ValueError(f"{path}: {'; '.join(_problems(error))}") from error
        config._folder = path.parent
        return config

    @property
    def label(self) -> str:
        """A short name of the policy."""
        if self.policy is None:
            return "none"
        policy = self.policy.spec if isinstance(self.policy, NamedSection) else self.policy.kind
        return policy if self.acceptance is None else f"{policy}+{self.acceptance.kind}"

    def build_policy(self) -> Policy | None:
        """The policy, if the file names one. ValueError or OSError for a file of its own that can not be used."""
        if self.policy is None:
            if self.acceptance is not None:
                raise ValueError(f"acceptance {self.acceptance.kind} needs a policy in the same file: add one")
            return None
        policy = self.policy.build(self._folder)
        return policy if self.acceptance is None else self.acceptance.around(policy)

    def options(self) -> dict[str, Any]:
        """The engine's settings under the names of the command line's options, those that are set."""
        drafter = self.drafter if "drafter" in self.model_fields_set else DrafterSection(kind="")
        settings = {
            "model": self.model,
            "revision": self.revision,
            "drafter": drafter.kind or None,
            "draft_model": drafter.model,
            **self.engine.model_dump(),
        }
        return {name: value for name, value in settings.items() if value is not None}


def _read(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    content: Any
    if path.suffix == ".toml":
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} is not valid TOML: {error}") from error
    elif path.suffix in (".yaml", ".yml"):
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    else:
        raise ValueError(f"{path}: the name must end in .yaml, .yml or .toml")
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{path} must hold keys and values at its top, such as `model: smollm2-135m`")
    return content


def _problems(error: ValidationError) -> Iterator[str]:
    """One sentence for each thing that is wrong."""
    for one in error.errors():
        place = [str(part) for part in one["loc"]]
        if place[:1] == ["policy"] and len(place) > 2:
            del place[1]  # which policy's section it is; the file has no such level
        name = ".".join(place)
        if one["type"] == "extra_forbidden":
            close = difflib.get_close_matches(place[-1], _known_keys(), n=1)
            yield f"unknown key {name!r}" + (f", did you mean {close[0]!r}?" if close else "")
        else:
            yield f"{name}={one['input']!r}: {one['msg']}"


def _known_keys() -> set[str]:
    schema = Config.model_json_schema()
    sections: list[Mapping[str, Any]] = [schema, *schema.get("$defs", {}).values()]
    return {key for section in sections for key in section.get("properties", {})}
