"""What must hold for every page of the static site, read by a parser of its own."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = frozenset({"img", "link", "meta", "br", "hr", "input", "col", "source", "wbr"})
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class PageCheck(HTMLParser):
    """Collects what is wrong with one page, and its links, ids and pictures."""

    def __init__(self, path: Path):
        super().__init__()
        self.path, self.problems = path, []
        self.links, self.ids, self.pictures, self.text, self.levels = [], set(), [], [], []
        self.policy, self._open, self._inline, self._picture = "", [], None, None
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        if self._open:
            self.problems.append(f"never closed: {self._open}")
        if "default-src 'none'" not in self.policy or "unsafe" in self.policy:
            self.problems.append("no content policy that forbids what is not ours")
        steps = zip(self.levels, self.levels[1:], strict=False)
        if self.levels[:1] != [1] or any(after > before + 1 for before, after in steps):
            self.problems.append(f"headings out of order: {self.levels}")

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        if tag not in VOID:
            self._open.append(tag)
        if "id" in values:
            if values["id"] in self.ids:
                self.problems.append(f"two things are called {values['id']}")
            self.ids.add(values["id"])
        if tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img" or (tag == "svg" and values.get("role") == "img"):
            alt = values.get("alt" if tag == "img" else "aria-label", "").strip()
            self.pictures.append(alt)
            if not alt or alt.startswith("<"):
                self.problems.append(f"picture {values.get('src', '')[:60]} has no text alternative")
        if values.get("class") == "picture":
            self._picture = len(self.pictures)
        if tag == "th" and "scope" not in values:
            self.problems.append("a table head without scope")
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.levels.append(int(tag[1]))
        if values.get("style") or any(name.startswith("on") for name in values):
            self.problems.append(f"<{tag}> has style or a script in an attribute")
        if any(value.strip().lower().startswith(("javascript:", "vbscript:")) for value in values.values()):
            self.problems.append(f"<{tag}> runs a script")
        if tag in FETCHED and not values.get(FETCHED[tag], "data:").startswith("data:"):
            self.problems.append(f"request: {values[FETCHED[tag]][:80]}")
        if tag in ("script", "style") and values.get("type") != "application/json":
            self._inline = ""

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if tag not in self._open:
            self.problems.append(f"</{tag}> closes nothing")
            return
        if tag in ("script", "style") and self._inline is not None:
            digest = base64.b64encode(hashlib.sha256(self._inline.encode()).digest()).decode()
            if f"sha256-{digest}" not in self.policy:
                self.problems.append(f"a {tag} that the policy does not know")
            if "@import" in self._inline or "url(" in self._inline:
                self.problems.append(f"a {tag} fetches something")
            self._inline = None
        while self._open.pop() != tag:
            pass
        if tag == "div" and self._picture is not None:
            if len(self.pictures) == self._picture:
                self.problems.append("a figure without a picture")
            self._picture = None

    def handle_data(self, data):
        if self._inline is not None:
            self._inline += data
        else:
            self.text.append(data)


def site_problems(folder: Path) -> list[str]:
    """Everything wrong with a site, each with the name of its page; dead links and sizes included.

    Args:
        folder: the site.

    Returns:
        One sentence per problem.
    """
    pages = {path.name: PageCheck(path) for path in sorted(folder.glob("*.html"))}
    found = [f"{name}: {problem}" for name, page in pages.items() for problem in page.problems]
    for name, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            target = unquote(target)
            if ":" in target or (folder / target).suffix == ".ipynb" and (folder / target).is_file():
                continue
            if target and target not in pages:
                found.append(f"{name}: link to {link}, which is not in the site")
            elif anchor and not {anchor, unquote(anchor)} & pages[target or name].ids:  # a browser tries both
                found.append(f"{name}: link to {link}, which has no such place")
        if page.path.stat().st_size > 2_000_000:
            found.append(f"{name}: over 2 MB")
    if sum(path.stat().st_size for path in folder.iterdir()) > 12_000_000:
        found.append("the site is over 12 MB")
    return found
