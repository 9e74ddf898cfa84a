"""The real thing: JupyterLab and the static site in headless Chromium, with a mouse and with a keyboard."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from site_check import site_problems
from tiny_notebooks import read_notebook, write_notebook

from kvzero.__main__ import main
from kvzero.workbook.canonical import canonical, dumps

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
REPOSITORY = Path(__file__).parents[1]
AXE = find_spec("axe_playwright_python")
KNOB = """\
from kvzero import Plan, Segment, audit_plan, geometries
from kvzero.workbook import draw_map, knob, show
slab = geometries.load("dsv4_c4_mla_only__BLHNC")
def shorten(span_bytes, block):
    segments = [Segment(v.storage, v.byte_offset, v.block_stride_bytes, span_bytes) for v in slab.layers]
    plan = Plan("old planner", slab.name, slab.num_blocks, slab.storages, tuple(segments), 0)
    return draw_map(slab, audit=audit_plan(plan, slab, [block]))
STEPS = {"the old span": {"span_bytes": 149_760, "block": 3}, "the page": {"span_bytes": 37_376},
         "64 bytes more than page and pad": {"span_bytes": 37_504}, "the last block": {"block": 15}}"""
SHOWN = """\
knob(shorten, controls={"span_bytes": range(64, 149_761, 64), "block": range(slab.num_blocks)}, steps=STEPS,
     boundary="64 bytes more than page and pad", title="How long may a span be?")"""
LONG = """\
knob(lambda span_bytes: shorten(span_bytes, 3), controls={"span_bytes": range(64, 149_761, 64)}, title="Longer?",
     steps={f"{span:,} bytes": {"span_bytes": span} for span in range(37_312, 37_888, 64)})"""
TABLE = """\
from kvzero.workbook import show_table
show_table([f"column {number}" for number in range(12)], [[10**6] * 12], "A table that is wider than a phone.")
print("x" * 300)"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(CHROMIUM is None, reason="not available here: no Chromium (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="not available here: no Playwright (pip)")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a free port with a notebook that has a knob; its address."""
    folder, settings = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("settings")
    write_notebook(folder / "knob.ipynb", [KNOB, SHOWN])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(8)
    home = {name: str(settings / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--port-retries=0",
        f"--IdentityProvider.token={token}", "--allow-root", f"--ServerApp.root_dir={folder}",
    ]  # fmt: skip
    log = (settings / "lab.log").open("w")
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **home, "PYTHONPATH": path})
    try:
        for _ in range(240):
            if server.poll() is not None:
                raise RuntimeError((settings / "lab.log").read_text())
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=2).close()
                break
            except OSError:
                time.sleep(0.25)
        yield f"http://127.0.0.1:{port}/lab/tree/knob.ipynb?token={token}&reset"
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def drawn(state: str) -> tuple[str, str, str]:
    """What the notebook's function draws for a step: the sentence, the text form, and the words of the picture."""
    names: dict = {}
    exec(KNOB, names)
    first = next(iter(names["STEPS"].values()))
    figure, sentence, text = names["shorten"](**{**first, **names["STEPS"][state]})
    return sentence, text, " ".join(figure.words)


def test_a_knob_in_jupyterlab_turns_and_its_last_picture_stays(browser, lab):
    page = browser.new_page(viewport={"width": 1024, "height": 780})
    page.set_default_timeout(60_000)
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(lab)
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()  # cells run before that are dropped
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    said = page.locator(".kvzero-knob-controls [role=status]")
    said.get_by_text(drawn("the old span")[0]).wait_for()
    span = page.get_by_label("span bytes")
    span.fill("37376")
    span.press("Tab")
    said.get_by_text(drawn("the page")[0].removeprefix("old planner ")).wait_for()
    pictures = page.locator(".kvzero-knob")
    pictures.get_by_alt_text(drawn("the page")[0]).wait_for()
    page.get_by_label("step", exact=True).select_option("the last block")
    pictures.get_by_alt_text(drawn("the last block")[0]).wait_for()
    assert page.get_by_label("block", exact=True).input_value() == "15" and span.input_value() == "149760"
    assert complaints == []
    unnamed = page.locator(".kvzero-knob-controls").evaluate(
        "box => [...box.querySelectorAll('input, select')].filter(one => !one.labels.length).length"
    )
    assert unnamed == 0, "every control has a name"
    page.get_by_role("button", name=re.compile("^Save")).first.click()
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.wait_for_timeout(1500)
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Shut Down Kernel")).click()
    page.wait_for_timeout(1500)
    page.goto(lab)
    pictures.get_by_alt_text(drawn("the last block")[0]).wait_for()
    page.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A site with knobs, a table and a wide line; the page's address."""
    folder = tmp_path_factory.mktemp("site")
    notebook = write_notebook(folder / "01_seen.ipynb", [KNOB, SHOWN, "show(*shorten(37_376, 3))", LONG, TABLE])
    cells = read_notebook(notebook)
    texts = ["# What a reader saw\n\nA number.", "## Symptom\n\n[Text](https://example.org).", "## The proof\n\nOf it."]
    text = [{"cell_type": "markdown", "id": f"t{n}", "metadata": {}, "source": text} for n, text in enumerate(texts)]
    notebook.write_text(dumps(canonical({"cells": text[:2] + cells["cells"][:-1] + text[2:] + cells["cells"][-1:],
                                         "metadata": {}})), encoding="utf-8")  # fmt: skip
    assert main(["run", str(notebook), "--device", "cpu", "-o", str(folder / "out"), "--html"]) == 0
    assert site_problems(folder / "out" / "site") == []
    return (folder / "out" / "site" / "01_seen.html").as_uri()


@pytest.fixture
def visit(browser, address):
    """Opens the page, and afterwards holds that nothing was asked of anybody and nothing complained."""
    contexts, asked, complaints = [], [], []

    def open_page(where: str = address, width: int = 1280, script: bool = True, scheme: str = "light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, java_script_enabled=script, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        page.goto(where)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert complaints == []


def test_a_knob_of_the_site_says_what_its_function_says(visit):
    page = visit()
    knob = page.locator(".knob").first
    radios = knob.get_by_role("radio")
    radios.first.focus()
    for number, label in enumerate(["the old span", "the page", "64 bytes more than page and pad", "the last block"]):
        if number:
            page.keyboard.press("ArrowDown")
        sentence, text, words = drawn(label)
        assert knob.get_by_role("radio", name=label).is_checked()
        assert knob.locator(".said").text_content() == sentence
        state = knob.locator(".state.here")
        assert state.count() == 1 and knob.locator(".state:visible").count() == 1
        assert state.locator("pre").first.text_content().strip() == text
        shown = state.locator("svg g text").evaluate_all("found => found.map(one => one.textContent)")
        assert sorted(" ".join(shown).split()) == sorted(words.split())
        assert state.locator("svg").get_attribute("aria-label") == sentence


def test_a_long_knob_is_a_slider(visit):
    page = visit()
    knob = page.locator(".knob").nth(1)
    slider = knob.get_by_role("slider", name="step")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "37,376 bytes" == knob.locator("output").inner_text()
    page.keyboard.press("End")
    assert slider.get_attribute("aria-valuetext") == "37,824 bytes"
    assert "wipes 384 live bytes" in knob.locator(".said").text_content()


def test_without_a_script_the_first_and_the_boundary_state_are_shown(visit):
    page = visit(script=False)
    shown = page.locator(".knob").first.locator(".state:visible")
    assert shown.evaluate_all("found => found.map(one => one.dataset.label)") == [
        "the old span", "64 bytes more than page and pad"
    ]  # fmt: skip
    assert not page.get_by_role("radio").first.is_visible() and not page.locator("#search").is_visible()


def test_a_map_tells_what_a_range_is(visit):
    page = visit()
    figure = page.locator(".output > figure").first
    drawing = figure.locator("svg")
    drawing.focus()
    page.keyboard.press("ArrowRight")
    first = figure.locator(".told").inner_text()
    assert first == "layer 0, block 1, bytes 149,760 to 187,135 of storage 0: not written"
    drawing.locator(".range").nth(16).hover()
    told = figure.locator(".told").inner_text()
    assert told == "layer 0, block 3, bytes 449,280 to 486,655 of storage 0: cleared, by old planner"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_a_page_fits_its_window_and_nobody_is_left_out(visit, width, scheme):
    page = visit(width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page does not scroll sideways"
    stops = page.evaluate(
        "[...document.querySelectorAll('pre, .picture')].filter(box => box.tabIndex === 0)"
        ".every(box => box.scrollWidth > box.clientWidth)"
    )
    assert stops, "a tab stop only where a box scrolls"
    for box in page.locator("details").all():
        box.evaluate("part => { part.open = true; }")
    if AXE is None:
        pytest.skip("not available here: axe-playwright-python (pip)")
    rules = (Path(AXE.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    for where in (page.url, page.url.replace("01_seen", "index")):
        page.goto(where)
        page.evaluate(rules)
        found = page.evaluate(
            "axe.run().then(found => found.violations.map(one => [one.id, one.impact, one.nodes[0].html]))"
        )
        assert [one for one in found if one[1] in ("serious", "critical")] == []
        assert [one for one in found if one[0] in ("heading-order", "region", "duplicate-id")] == []


def test_search_finds_the_section(visit, address):
    page = visit(address.replace("01_seen", "index"))
    page.get_by_label("Search all pages").fill("comma symptom")
    assert page.locator("#found").inner_text() == "0 sections"
    page.get_by_label("Search all pages").fill("slab.layers")
    page.locator("#results a").first.click()
    assert page.url.endswith("01_seen.html#Symptom")


def test_a_link_opens_the_proof_and_paper_has_everything(visit, address):
    page = visit(address)
    proof = page.locator(".proof")
    assert not proof.evaluate("part => part.open")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert proof.evaluate("part => part.open") and not page.locator(".contents").is_visible()
    assert page.locator(".knob").first.locator(".state:visible").count() >= 2
