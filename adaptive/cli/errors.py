"""Exit codes and messages: 2 for what the user typed, 1 for what went wrong afterwards, a traceback only on demand."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from adaptive.cli.wording import in_options

EXIT_RUNTIME = 1
EXIT_USAGE = 2

ENGINE_EXTRA = ("torch", "safetensors", "tokenizers", "jinja2", "gguf", "huggingface_hub", "psutil")
PEERS_EXTRA = ("transformers",)


class UsageError(Exception):
    """The command line, or a file it names, can not be used as it stands."""


class CliError(Exception):
    """A run-time failure whose message says what to do."""


# Raised with a message written for the user; the type's name would only add noise.
_PLAIN = (UsageError, CliError, ValueError, RuntimeError, OSError, MemoryError)


@contextmanager
def usage(option: str = "") -> Iterator[None]:
    """Turn ValueError and OSError into usage errors, naming the option they came from."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise UsageError(f"{option}: {describe(error)}" if option else describe(error)) from error


def describe(error: Exception) -> str:
    """The message, with the type's name where the error was not written for users."""
    if isinstance(error, ModuleNotFoundError):
        return _missing_module(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    # A bare RuntimeError is torch's word for a bug; only its subclasses are written for users.
    if isinstance(error, _PLAIN) and type(error) is not RuntimeError and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} (this should not happen; --debug shows where it did)"


def _missing_module(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    for extra, packages in (("engine", ENGINE_EXTRA), ("peers", PEERS_EXTRA)):
        if package in packages:
            return f"{package} is not installed: pip install 'adaptive-speculation[{extra}]'"
    return str(error)


def fail(error: Exception, *, debug: bool) -> NoReturn:
    """End the process with the error's code and one message."""
    if debug:
        traceback.print_exception(error)
    print(f"adaptive: {in_options(describe(error))}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_RUNTIME)
