"""A headless Chromium driven through its DevTools protocol, for tests of pages."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "google-chrome-stable")
DEADLINE_S = 150.0


class Browser:
    """One page of one browser; network addresses other than file: are not reachable from it."""

    def __init__(self, folder: Path) -> None:
        websocket = pytest.importorskip("websocket")
        program = next((found for name in NAMES if (found := shutil.which(name))), None)
        if program is None:
            pytest.skip("no Chromium or Chrome on this machine")
        self.folder = folder
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-port=0", "--remote-allow-origins=*", "--host-resolver-rules=MAP * ~NOTFOUND",
            "--window-size=1280,900", f"--user-data-dir={folder / 'profile'}", "about:blank",
        ]  # fmt: skip
        self._socket: Any = None
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = self._port()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=DEADLINE_S) as answer:
                page = next(target for target in json.load(answer) if target["type"] == "page")
            self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=DEADLINE_S)
        except BaseException:
            self.close()
            raise
        self._numbers = itertools.count(1)
        self.errors: list[str] = []
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def _port(self) -> str:
        file = self.folder / "profile" / "DevToolsActivePort"
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if file.is_file() and (lines := file.read_text(encoding="utf-8").split("\n"))[0]:
                return lines[0]
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        pytest.skip("the browser does not start on this machine")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command and its answer; errors of the page are kept on the way."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"])[:500])
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]

    def open(self, page: Path) -> None:
        """Load a file and wait until its scripts have run."""
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for(f"document.readyState === 'complete' && location.href === {json.dumps(page.as_uri())}")

    def wait_for(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + DEADLINE_S
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, down and up."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        """The window as PNG."""
        import base64

        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the browser."""
        if self._socket is not None:
            self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
