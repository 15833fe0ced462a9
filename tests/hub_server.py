"""A small Hugging Face Hub on this machine: enough of its HTTP API to push a repository and load it back.

Routes and headers as `huggingface_hub` 1.31 to 2.4 uses them. Everything lives in memory and listens on the loopback
interface only. Writing needs the token `TOKEN`, reading does not.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml


TOKEN = "hf_local"
LARGE_FILES = (".safetensors", "tokenizer.json")  # stored by hash and uploaded beside the commit


class HubError(Exception):
    """An answer that is not a success, as the Hub words it."""

    def __init__(self, status: int, code: str, **headers: str) -> None:
        super().__init__(code)
        self.status, self.headers = status, {"X-Error-Code": code, "X-Error-Message": code, **headers}


@dataclass
class Repository:
    """Commits by hash, each a whole tree of files, and the branches that point to them."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes | None], branch: str = "main") -> str:
        """Add, replace or (None) remove files on a branch; returns the commit's hash."""
        before = self.commits[self.branches[branch]] if branch in self.branches else {}
        tree = {path: content for path, content in {**before, **files}.items() if content is not None}
        content = "".join(f"{path}:{hashlib.sha1(data).hexdigest()}\n" for path, data in sorted(tree.items()))
        sha = hashlib.sha1(f"{len(self.commits)}\n{content}".encode()).hexdigest()
        self.commits[sha] = tree
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> str:
        """The commit that a branch or hash means."""
        sha = self.branches.get(revision, revision)
        if sha not in self.commits:
            raise HubError(404, "RevisionNotFound")
        return sha


class LocalHub:
    """The server; use it as a context manager."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.log: list[str] = []
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        # Large files live at another host, as on the real Hub: a client stops at the redirect to learn about them.
        self.storage_url = f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> "LocalHub":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that send a client here, and nowhere else."""
        return {
            "HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost",
        }  # fmt: skip

    def publish(self, name: str, folder: Path) -> str:
        """A new repository with a folder's files on its main branch; returns the commit's hash."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        self.objects |= {hashlib.sha256(data).hexdigest(): data for data in files.values()}
        self.repositories[name] = Repository()
        return self.repositories[name].commit(files)

    def head(self, name: str) -> dict[str, bytes]:
        """Files on the main branch."""
        repository = self.repositories[name]
        return repository.commits[repository.branches["main"]]


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two small ones wait for each other's acknowledgement

    def log_message(self, format: str, *args: object) -> None:
        self.hub.log.append(format % args)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        try:
            if method == "POST" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise HubError(401, "Unauthorized")
            for route_method, pattern, action in _ROUTES:
                if (match := re.fullmatch(pattern, path)) and method in route_method:
                    parts = {name: unquote(value) for name, value in match.groupdict().items() if value is not None}
                    status, headers, content = action(self, body, **parts)
                    break
            else:
                raise HubError(404, "EntryNotFound")
        except HubError as error:
            status, headers, content = error.status, error.headers, json.dumps({"error": str(error)}).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(content)

    def _repository(self, repo: str) -> Repository:
        if repo not in self.hub.repositories:
            raise HubError(404, "RepoNotFound")
        return self.hub.repositories[repo]

    def create(self, body: bytes) -> Any:
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        status = 409 if repo in self.hub.repositories else 200
        if status == 200:
            self.hub.repositories[repo] = Repository()
            self.hub.repositories[repo].commit({".gitattributes": b""})
        return _json({"url": f"{self.hub.url}/{repo}", "name": repo}, status)

    def validate_card(self, body: bytes) -> Any:
        _, front, _ = json.loads(body)["content"].split("---\n", 2)
        valid = isinstance(yaml.safe_load(front), dict)
        return _json({"errors": [] if valid else [{"message": "no mapping"}], "warnings": []}, 200 if valid else 400)

    def preupload(self, body: bytes, repo: str, revision: str) -> Any:
        self._repository(repo).resolve(revision)
        files = [
            {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(LARGE_FILES) else "regular",
             "shouldIgnore": False, "oid": None}
            for file in json.loads(body)["files"]
        ]  # fmt: skip
        return _json({"files": files})

    def announce_objects(self, body: bytes, repo: str) -> Any:
        self._repository(repo)
        objects = [
            asked | {"actions": {"upload": {"href": f"{self.hub.storage_url}/objects/{asked['oid']}"}}}
            for asked in json.loads(body)["objects"]
        ]
        return _json({"transfer": "basic", "objects": objects})

    def upload_object(self, body: bytes, oid: str) -> Any:
        if hashlib.sha256(body).hexdigest() != oid:
            raise HubError(400, "BadHash")
        self.hub.objects[oid] = body
        return _json({})

    def commit(self, body: bytes, repo: str, revision: str) -> Any:
        files: dict[str, bytes | None] = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        sha = self._repository(repo).commit(files, revision)
        return _json({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{repo}/commit/{sha}"})

    def branch(self, body: bytes, repo: str, name: str) -> Any:
        repository = self._repository(repo)
        repository.branches.setdefault(name, repository.branches["main"])
        return _json({}, 200)

    def info(self, body: bytes, repo: str, revision: str = "main") -> Any:
        repository = self._repository(repo)
        sha = repository.resolve(revision)
        siblings = [{"rfilename": path} for path in repository.commits[sha]]
        return _json({"id": repo, "modelId": repo, "sha": sha, "private": False, "tags": [], "siblings": siblings})

    def tree(self, body: bytes, repo: str, revision: str, folder: str = "") -> Any:
        repository = self._repository(repo)
        files = repository.commits[repository.resolve(revision)]
        found = [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in files.items()
            if path.startswith(f"{folder}/" if folder else "")
        ]
        if not found:
            raise HubError(404, "EntryNotFound")
        return _json(found)

    def file(self, body: bytes, repo: str, revision: str, path: str) -> Any:
        repository = self._repository(repo)
        sha = repository.resolve(revision)
        headers = {"X-Repo-Commit": sha}
        if path not in repository.commits[sha]:
            raise HubError(404, "EntryNotFound", **headers)
        content = repository.commits[sha][path]
        oid = hashlib.sha256(content).hexdigest()
        if path.endswith(LARGE_FILES):
            headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content))}
            return 302, headers | {"Location": f"{self.hub.storage_url}/objects/{oid}"}, b""
        return 200, headers | {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'}, content

    def object(self, body: bytes, oid: str) -> Any:
        return 200, {"ETag": f'"{oid}"'}, self.hub.objects[oid]


def _json(value: object, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_ROUTES = [
    ("POST", r"/api/repos/create", _Handler.create),
    ("POST", r"/api/validate-yaml", _Handler.validate_card),
    ("POST", rf"/api/models/{_REPO}/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    ("POST", rf"/api/models/{_REPO}/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("POST", rf"/api/models/{_REPO}/branch/(?P<name>[^/]+)", _Handler.branch),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", _Handler.announce_objects),
    ("PUT", r"/objects/(?P<oid>\w+)", _Handler.upload_object),
    ("GET HEAD", r"/objects/(?P<oid>\w+)", _Handler.object),
    ("GET", rf"/api/models/{_REPO}", _Handler.info),
    ("GET", rf"/api/models/{_REPO}/revision/(?P<revision>[^/]+)", _Handler.info),
    ("GET", rf"/api/models/{_REPO}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", _Handler.tree),
    ("GET HEAD", rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.file),
]
