"""What may be wrong with HTML: tags that do not close, anything from elsewhere; and a browser."""

import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br"}
HOSTILE = "</style></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028\x00\x1b[0m]]>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom",
]  # fmt: skip


class Parsed(HTMLParser):
    """A document: its elements, their attributes, and its text."""

    def __init__(self, document):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(document)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self):
        return "".join(data for tag, data in self.texts if tag != "style")


def checked(document):
    """The document parsed, well-formed, without scripts, and with nothing that is loaded from elsewhere."""
    found = Parsed(document)
    assert "script" not in found.tags and "img" not in found.tags and "iframe" not in found.tags
    for tag, key, value in found.attributes:
        assert not key.startswith("on") or (tag, key) == ("input", "oninput"), (tag, key)
        if key in ("src", "href", "xlink:href", "data", "action"):
            assert value == "data:,", value
        assert key == "xmlns" or "//" not in value or key in ("title", "aria-label"), (tag, key, value)
    styles = "".join(data for tag, data in found.texts if tag == "style")
    assert "url(" not in styles and "@import" not in styles and "http" not in styles
    assert "<" not in styles
    return found


def opened(document, folder, widths=(1280, 390)):
    """What a browser says of a document in frames of some widths: errors, and how wide it would be."""
    frames = "".join(
        f'<iframe width="{width}" height="800" srcdoc="{escape(document)}"></iframe>' for width in widths
    )
    script = """
    onload = () => {
      const found = [...document.querySelectorAll('iframe')].map(frame => {
        const page = frame.contentDocument, bars = [...page.querySelectorAll('.zoomed svg svg')]
        const input = page.querySelector('input'), before = page.querySelector('.zoomed svg')?.clientWidth
        if (input) { input.value = 2; input.dispatchEvent(new Event('input')) }
        return {wide: page.documentElement.scrollWidth, room: page.documentElement.clientWidth,
                before, after: page.querySelector('.zoomed svg')?.clientWidth,
                bars: bars.length, scripts: page.querySelectorAll('script').length}
      })
      document.getElementById('found').textContent = JSON.stringify(found)
    }"""
    page = folder / "frames.html"
    body = f'<pre id="found"></pre>{frames}<script>{script}</script>'
    page.write_text(f"<!DOCTYPE html>{body}", encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert found and found[1], done.stderr[-2000:]
    return said, json.loads(found[1])
