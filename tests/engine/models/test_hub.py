"""The hub's client against a hub of our own on this machine, in a process of its own: it reads its environment once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = {
    name: f"content of {name}".encode()
    for name in (
        "config.json",
        "tokenizer.json",
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "README.md",
    )
}
WANTED = {"config.json", "tokenizer.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"}
PROGRAM = """
import sys
from engine.models.fetch import FetchError
from engine.models.hub import fetch_snapshot
try:
    print(fetch_snapshot("org/" + sys.argv[1], *sys.argv[2:]))
except FetchError as error:
    sys.exit(f"FetchError: {error}")
"""


class Hub(BaseHTTPRequestHandler):
    """`org/tiny` at `main` and `v2`; `org/gated` refuses, everything else is not there."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/api/models/org/gated"):
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif path in (f"/api/models/org/tiny/revision/{name}" for name in ("main", "v2", COMMIT)):
            self._json({"id": "org/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in CONTENT]})
        elif path == f"/api/models/org/tiny/tree/{COMMIT}":
            files = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in CONTENT.items()]
            self._json(files)
        elif path.startswith("/api/models/org/tiny/revision/"):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif (name := path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")) in CONTENT:
            self._answer(200, CONTENT[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetch(endpoint: str, home: Path, *args: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    proxies = {f"{name}_proxy" for name in ("http", "https", "all")}
    kept = {name: value for name, value in kept.items() if name.lower() not in proxies}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": os.getcwd()}
    environment = kept | settings | ({"HF_HUB_OFFLINE": "1"} if offline else {})
    command = [sys.executable, "-c", PROGRAM, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_what_is_needed_is_downloaded_once_and_then_offline(hub: str, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path, "tiny")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: CONTENT[name] for name in WANTED}
    assert fetch(hub, tmp_path, "tiny", offline=True).stdout.strip() == str(folder)
    assert fetch(hub, tmp_path, "tiny", "v2").stdout.strip() == str(folder)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("gated",), r"hub model 'org/gated' is gated: accept its terms at {hub}/org/gated, then set HF_TOKEN"),
        (("tiny", "v9"), "hub model 'org/tiny' at revision 'v9' does not exist: name a branch, a tag or a commit"),
        (("none",), "there is no hub model 'org/none', and no file or folder of that name: check the spelling"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_refusals_say_what_to_do(hub: str, tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    done = fetch(hub, tmp_path, *args)
    assert done.returncode == 1
    assert message.format(hub=hub) in done.stderr


def test_without_a_network(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    unreachable = fetch(nobody, tmp_path, "tiny")
    assert unreachable.returncode == 1
    where = f"is no file or folder here, is not in the cache ({tmp_path}/hub), and {nobody} could not be reached"
    assert f"FetchError: hub model 'org/tiny' {where}" in unreachable.stderr
    offline = fetch(nobody, tmp_path, "tiny", offline=True)
    assert offline.returncode == 1
    assert "HF_HUB_OFFLINE is set: unset it once" in offline.stderr
