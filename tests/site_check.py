"""What must hold for every page of the static site, read by a parser of its own."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = frozenset({"img", "link", "meta", "br", "hr", "input", "col", "source", "wbr"})
# Attributes that make a browser fetch something, as against links that a reader may follow.
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class PageCheck(HTMLParser):
    """Collects what is wrong with one page, and its links, ids and pictures."""

    def __init__(self, path: Path):
        super().__init__()
        self.path, self.problems = path, []
        self.links, self.ids, self.pictures, self.text, self._open = [], set(), [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        if self._open:
            self.problems.append(f"never closed: {self._open}")

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        if tag not in VOID:
            self._open.append(tag)
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img":
            alt = values.get("alt", "").strip()
            self.pictures.append((values.get("src", ""), alt))
            if not alt or alt.startswith("<"):
                self.problems.append(f"picture {values.get('src', '')[:60]} has no text alternative")
        if tag in FETCHED and values.get(FETCHED[tag]):
            self._check_fetched(values[FETCHED[tag]])
        if tag == "script":
            self.problems.append("a script")

    def _check_fetched(self, target: str):
        if target.startswith("data:"):
            return
        if ":" in target or target.startswith("//"):
            self.problems.append(f"external request: {target[:80]}")
        elif not (self.path.parent / target).is_file():
            self.problems.append(f"{target} is not in the site")

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if tag not in self._open:
            self.problems.append(f"</{tag}> closes nothing")
            return
        while self._open.pop() != tag:
            pass

    def handle_data(self, data):
        self.text.append(data)


def site_problems(folder: Path) -> list[str]:
    """Everything wrong with a site, each with the name of its page; dead links between pages included.

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
            if ":" in target:
                continue
            if target and target not in pages:
                found.append(f"{name}: link to {link}, which is not in the site")
            elif anchor and anchor not in pages[target or name].ids:
                found.append(f"{name}: link to {link}, which has no such place")
    if "@import" in (style := (folder / "style.css").read_text(encoding="utf-8")) or "url(" in style:
        found.append("style.css fetches something")
    return found
