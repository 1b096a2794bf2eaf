"""A headless Chromium that a test drives over the DevTools protocol, by two pipes."""

import itertools
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
UNTIL = """
const until = async test => {
  for (let tries = 0; !test(); tries++) {
    if (tries > 3000) throw Error(`not true after a minute: ${test}`);
    await new Promise(go => setTimeout(go, 20));
  }
};
"""


class Page:
    """The one page of a browser."""

    def __init__(self, commands, events):
        self._commands, self._events, self._numbers, self._session = commands, events, itertools.count(1), None
        self.problems = []
        """Errors and requests to other addresses than files, as the browser reports them."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(b"".join(iter(lambda: self._events.read(1), b"\0")))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(parameters["exceptionDetails"]["exception"]["description"])
        url = parameters.get("request", {}).get("url", "")
        if event.get("method") == "Network.requestWillBeSent" and not url.startswith(("file:", "data:", "blob:")):
            self.problems.append(url)

    def open(self, path, *, width=1280, scheme="light"):
        """Open a file in a window of this width, dark or light, and wait until it says that it is ready."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        self.run("until(() => document.body?.dataset.ready)")

    def run(self, expression):
        """Return the value of JavaScript, which may wait by `until(condition)`."""
        code = f"(async () => {{ {UNTIL} return await ({expression}); }})()"
        answer = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]["exception"]["description"]
        return answer["result"].get("value")

    def text(self, selector):
        """Return the visible text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def accessible(self, role):
        """Return the names of the elements with a role, as assistive technology has them."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [node["name"]["value"] for node in nodes if node["role"]["value"] == role]

    def point(self, selector, number=0):
        """Return the middle of an element, the number-th of those selected, once it is there."""
        element = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.run(f"until(() => {element})")
        return self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({element}.getClientRects()[0])")

    def mouse(self, kind, x, y):
        """Move, press or release the mouse."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, selector, number=0):
        """Click an element."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, *self.point(selector, number))

    def key(self, name, code):
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)


@contextmanager
def browser():
    """Start a browser, and give its page."""
    to_browser, commands = os.pipe()
    events, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{to_browser} 4>&{from_browser}',
                "-",
                PROGRAM,
                *flags,
                "--remote-debugging-pipe",
            ],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            with open(events, "rb") as stream:
                yield Page(commands, stream)
        finally:
            os.close(commands)  # the browser ends without its pipe
            process.wait(30)
