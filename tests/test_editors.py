"""What an editor shows of the language: pyright's language server completes and explains every public name."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from taskc.lang import cuda

ROOT = Path(__file__).parents[1]
FILE = ROOT / "a_user_s_file.py"  # which is nowhere but in the editor

KERNEL = """from __future__ import annotations

import taskc as tc
from taskc import f32, spatial


@tc.kernel(workers=4)
def kernel(x: f32[4], y: tc.out[f32[4]]) -> None:
    part = tc.load(x[0:4])
    rounded = part.to(tc.f16)
    own = tc.tile(f32, spatial(4), 0)
    general = tc.load(4, lambda i: x[i].to(tc.bf16), fill=0)
    x.
"""


class Server:
    """A language server in a process of its own, spoken to as an editor does."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyright.langserver", "--stdio"], stdin=pipe, stdout=pipe
        )
        self.asked = 0
        folder = {"uri": ROOT.as_uri(), "name": "taskc"}
        self.ask("initialize", processId=None, capabilities={}, workspaceFolders=[folder])
        self.tell("initialized")

    def tell(self, method: str | None = None, /, **message: Any) -> None:
        if method is not None:
            message = {"method": method, "params": message}
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.process.stdin.flush()

    def ask(self, method: str, /, **parameters: Any) -> Any:
        self.asked += 1
        self.tell(id=self.asked, method=method, params=parameters)
        while True:
            heard = self.heard()
            if "method" not in heard and heard.get("id") == self.asked:
                return heard["result"]
            if heard.get("method") == "workspace/configuration":
                self.tell(id=heard["id"], result=[{} for _ in heard["params"]["items"]])
            elif "method" in heard and "id" in heard:
                self.tell(id=heard["id"], result=None)

    def heard(self) -> dict[str, Any]:
        stream = self.process.stdout
        assert stream is not None
        length = 0
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the server has ended"
        message: dict[str, Any] = json.loads(stream.read(length))
        return message

    def open(self, text: str) -> None:
        document = {"uri": FILE.as_uri(), "languageId": "python", "version": 1, "text": text}
        self.tell("textDocument/didOpen", textDocument=document)

    def close(self) -> None:
        self.tell("textDocument/didClose", textDocument={"uri": FILE.as_uri()})

    def at(self, method: str, line: int, column: int) -> Any:
        place = {"line": line, "character": column}
        return self.ask(method, textDocument={"uri": FILE.as_uri()}, position=place)

    def hover(self, line: int, column: int) -> str:
        shown = self.at("textDocument/hover", line, column)
        text: str = shown["contents"]["value"] if shown else ""
        return text

    def completions(self, line: int, column: int) -> set[str]:
        return {item["label"] for item in self.at("textDocument/completion", line, column)["items"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.kill()
    server.process.communicate()


def words(text: str) -> list[str]:
    """As an editor shows a text, without what it marks."""
    return "".join(letter if letter.isalnum() else " " for letter in text).split()


@pytest.mark.parametrize(
    ("prefix", "module", "names"),
    [("tc.", tc, [*tc.__all__, "print"]), ("tc.cuda.", cuda, cuda.__all__)],
    ids=["tc", "tc.cuda"],
)
def test_every_name_is_completed_and_explained(
    server: Server, prefix: str, module: Any, names: list[str]
) -> None:
    lines = ["import taskc as tc", *(f"{prefix}{name}" for name in names), prefix]
    server.open("\n".join(lines))
    try:
        missing = set(names) - server.completions(len(names) + 1, len(prefix))
        assert not missing
        for number, name in enumerate(names, start=1):
            shown = server.hover(number, len(prefix) + 1)
            value = getattr(module, name)
            text = None
            if callable(value) and not inspect.ismodule(value):
                text = inspect.getdoc(value)
            expected = words((text or "").partition("\n")[0])
            assert " ".join(expected) in " ".join(words(shown)), f"{prefix}{name}: {shown}"
            assert shown, f"nothing is shown of {prefix}{name}"
    finally:
        server.close()


def test_values_in_a_kernel_have_types(server: Server) -> None:
    server.open(KERNEL)
    try:
        types = {}
        for number, line in enumerate(KERNEL.splitlines()):
            name, equals, _ = line.partition(" = ")
            if equals:
                types[name.strip()] = server.hover(number, 5)
        for name, kind in {
            "part": "f32",
            "rounded": "f16",
            "own": "f32",
            "general": "bf16",
        }.items():
            assert f"{name}: {kind}" in types[name]
        members = server.completions(KERNEL.count("\n") - 1, 6)
        assert {"T", "dtype", "mapping", "reshape", "shape", "to"} <= members
    finally:
        server.close()
