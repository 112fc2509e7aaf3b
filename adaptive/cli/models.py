"""`adaptive models`: fetch named models, list them, say where they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive.cli.errors import UsageError
from adaptive.cli.options import DTYPES, Debug, Dtype, Json, Revision
from adaptive.cli.render import MISSING, Steps, print_json, stdout, table

if TYPE_CHECKING:
    from engine.models.fetch import KnownModel

app = typer.Typer(help="Fetch and list the models known by name; write any model as a folder.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `adaptive models list`.")]
AnyModel = Annotated[
    str, typer.Argument(metavar="MODEL", help="A known model's name, a GGUF file, a Hugging Face folder or hub id.")
]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Made where it is not there.")]


@app.command()
def fetch(name: Name, json: Json = False, debug: Debug = False) -> None:
    """Download a model into the cache, check it, and print its path; offline from then on."""
    _require_known(name)
    path = fetch_with_progress(name)
    print_json({"name": name, "path": str(path)}) if json else print(path)


@app.command("list")
def list_models(json: Json = False, debug: Debug = False) -> None:
    """List the models known by name, and the trained drafters that come with the package."""
    models = known_models().values()
    if json:
        print_json([_as_json(model) for model in models])
        return
    rows = [
        [one.name, one.description, one.licence, _shipped(one.name), "yes" if one.cached else "no", str(_mib(one))]
        for one in models
    ]
    columns = ["name", "what it is", "licence", "drafters of ours", "here", "MiB"]
    stdout().print(table("Models", columns, rows, left=5))


@app.command()
def path(name: Name, json: Json = False, debug: Debug = False) -> None:
    """Print where a fetched model's file is."""
    from engine.models.fetch import resolve_model

    _require_known(name)
    found = resolve_model(name)
    print_json({"name": name, "path": str(found)}) if json else print(found)


@app.command()
def export(
    model: AnyModel,
    folder: Folder,
    revision: Revision = None,
    dtype: Dtype = "float32",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a model as a Hugging Face folder: config.json, safetensors, tokenizer; weights dequantised."""
    if dtype not in DTYPES:
        raise UsageError(f"--dtype: {dtype!r} is not known; choose from {', '.join(DTYPES)}")
    if (folder / "config.json").exists():
        raise UsageError(f"{folder} holds a model already: name another folder")
    from engine.config import DTYPES as TORCH_DTYPES
    from engine.models.export import export_huggingface
    from engine.models.source import open_model

    with Steps(f"reading {model}") as steps:
        checkpoint = open_model(model, revision).load(TORCH_DTYPES[dtype], steps.reached)
        steps.begin(f"writing {folder}")
        export_huggingface(checkpoint, folder)
    print_json({"model": model, "path": str(folder), "dtype": dtype}) if json else print(folder)


def fetch_with_progress(name: str) -> Path:
    """The path of the model's file, downloaded and checked where it was not there yet."""
    from engine.models.fetch import fetch_model

    with Steps(f"fetching {name}") as steps:
        return fetch_model(name, steps.begin)


def known_models() -> dict[str, KnownModel]:
    from engine.models.fetch import KNOWN_MODELS

    return KNOWN_MODELS


def _as_json(model: KnownModel) -> dict[str, object]:
    from engine.drafters.shipped import shipped_drafters

    return {
        "name": model.name,
        "description": model.description,
        "licence": model.licence,
        "mib": _mib(model),
        "package": model.package,
        "cached": model.cached,
        "path": str(model.path),
        "drafters": [
            {"drafter": one.drafter, "method": one.method, "path": str(one.folder), "bytes": one.size_bytes}
            for one in shipped_drafters(model.name)
        ],
    }


def _shipped(name: str) -> str:
    """What `--drafter` takes for it without `--draft-model`."""
    from engine.drafters.shipped import shipped_drafters

    return ", ".join(one.drafter for one in shipped_drafters(name)) or MISSING


def _mib(model: KnownModel) -> int:
    return round(model.size_bytes / 2**20)


def _require_known(name: str) -> None:
    if name not in (known := known_models()):
        raise UsageError(f"model {name!r} is not known; choose from {', '.join(known)}")
