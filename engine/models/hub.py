"""Models of the Hugging Face hub: the files an engine needs, downloaded once into the hub's own cache.

huggingface_hub reads its environment variables itself: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.models.fetch import FetchError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form `organisation/model`, and is not just the path of a GGUF file."""
    return HUB_ID.fullmatch(name) is not None and not name.endswith(".gguf")


def fetch_snapshot(repo: str, revision: str | None = None) -> Path:
    """The folder of a hub model at a branch, tag or commit (None: its main branch).

    Raises FetchError when it can not be had: no network, offline and not cached, not there, not allowed.
    """
    from huggingface_hub import constants, errors, snapshot_download  # half a second, for hub models only

    what = f"hub model {repo!r}" + (f" at revision {revision!r}" if revision else "")
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(FILES)))
    except errors.GatedRepoError as error:
        raise FetchError(
            f"{what} is gated: accept its terms at {constants.ENDPOINT}/{repo}, "
            "then set HF_TOKEN to a token that may read it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FetchError(f"{what} does not exist: name a branch, a tag or a commit of {repo}") from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(
            f"there is no {what}, and no file or folder of that name: check the spelling, "
            "or set HF_TOKEN if it is private"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise FetchError(
            f"{what} is no file or folder here, is not in the cache ({constants.HF_HUB_CACHE}), and {_why_not(error)}"
        ) from error
    except Exception as error:  # of the file system, and of an HTTP client that differs between its versions
        raise FetchError(f"{what} could not be downloaded: {_first_line(error)}") from error


def _why_not(error: Exception) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set: unset it once, with a network connection, to download the model"
    reason = _first_line(error.__cause__ or error)
    return f"{constants.ENDPOINT} could not be reached ({reason}): a network connection is needed once"


def _first_line(error: BaseException) -> str:
    """Type and beginning of an error that was not written for users."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
