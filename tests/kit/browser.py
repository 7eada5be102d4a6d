"""A headless Chromium, driven over the Chrome DevTools Protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from tests.kit.waiting import PATIENCE, until

PROGRAM = shutil.which("chromium")


class Browser:
    """One browser with one page, which remembers what its console said."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [
                PROGRAM,
                "--headless=new",
                # Tests run as root, where the sandbox does not.
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._folder.name}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._numbers = count(1)
        self.errors: list[str] = []
        """Exceptions and errors, as texts."""
        try:
            port = Path(self._folder.name) / "DevToolsActivePort"
            until(lambda: port.exists() and port.read_text().count("\n"), "the browser is there")
            number, path = port.read_text().split("\n")[:2]
            self._socket = connect(f"ws://127.0.0.1:{number}{path}", max_size=None)
            pages = self._ask("Target.getTargets")["targetInfos"]
            page = next(each["targetId"] for each in pages if each["type"] == "page")
            self._session = self._ask("Target.attachToTarget", targetId=page, flatten=True)[
                "sessionId"
            ]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def _ask(self, method: str, session: str = "", **values: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": values}
        if session:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE))
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        values = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(json.dumps(values["entry"]))

    def call(self, method: str, **values: Any) -> Any:
        """Carry out a method of the protocol in the page."""
        return self._ask(method, self._session, **values)

    def open(self, address: str) -> None:
        """Go to an address; what went wrong with the page before is forgotten."""
        self.call("Page.navigate", url="about:blank")
        self.errors.clear()
        assert "errorText" not in self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, (script, found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until an expression is true in the page."""
        try:
            return until(lambda: self.run(script), script)
        except AssertionError:
            print(self.run("document.body.innerText"), self.errors)
            raise

    def key(self, key: str) -> None:
        """Press and release a key."""
        code = {"Enter": 13, "Tab": 9}.get(key, 0)
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def size(self, width: int, height: int) -> None:
        """Make the window as large as that."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def scheme(self, name: str) -> None:
        """Prefer the colour scheme "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def point(self, selector: str) -> None:
        """Move the pointer to the middle of an element."""
        box = "const box = found.getBoundingClientRect()"
        x, y = self.run(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            f" found.scrollIntoView({{block: 'center'}}); {box};"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path) -> None:
        """Write what the page looks like."""
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._folder.cleanup()
