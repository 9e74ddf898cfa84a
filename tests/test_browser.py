"""The real thing: JupyterLab and the static site in headless Chromium, with a mouse and with a keyboard."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tiny_notebooks import write_notebook

from kvzero.__main__ import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
REPOSITORY = Path(__file__).parents[1]
EXPLORERS = ("id_race_knob", "launch_size_knob", "layout_explorer", "probe_explorer")
IMPORT = f"from kvzero.workbook.explorers import {', '.join(EXPLORERS)}"
MAP = """\
from kvzero.audit.audit import audit_plan
from kvzero.history import planner
from kvzero.workbook.figures import show_map
from kvzero.workbook.toy import make_geometry
pool = make_geometry(layers=4, num_blocks=4, order="BLNHC", pad_bytes=8, content=16)
show_map(pool, audit=audit_plan(planner("uniform-page").plan(pool), pool, [3]))"""
RACE = """\
from kvzero.workbook.explorers import id_race_data, id_race_figure, id_race_knob
from kvzero.workbook.figures import show
race = id_race_data(held_us=30, gap_us=20)
show(id_race_figure(race), race.sentence, race.text)"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
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
    """JupyterLab on a free port with a notebook of all explorers; its address."""
    folder, settings = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("settings")
    write_notebook(folder / "explorers.ipynb", [IMPORT, *(f"{name}()" for name in EXPLORERS)])
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
        yield f"http://127.0.0.1:{port}/lab/tree/explorers.ipynb?token={token}&reset"
    finally:
        server.terminate()
        server.wait(20)
        log.close()


@pytest.fixture(scope="module")
def page(browser, lab):
    """The notebook, open and run, with what the console complained of in `page.complaints`."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda line: page.complaints.append(line.text) if line.type == "error" else None)
    page.goto(lab)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)  # cells run before that are dropped
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(
        f"document.querySelectorAll('.kvzero-explorer img').length == {len(EXPLORERS)}", timeout=90_000
    )
    page.opened = [look(box) for box in page.locator(".kvzero-explorer").all()]
    return page


def look(box) -> list[str]:
    """The picture and everything an explorer says, at one moment."""
    return box.evaluate(
        """box => [box.querySelector('img').src,
        [...box.querySelectorAll('[role=status], pre')].map(part => part.textContent).join('\\n')]"""
    )


def changed(page, box, before, what: str) -> bool:
    """Wait until the words (sentence, text, code) have changed; whether the picture has, too, a moment later."""
    for _ in range(400):
        if look(box)[1] != before[1]:
            page.wait_for_timeout(150)  # the parts of an explorer arrive one after the other
            return look(box)[0] != before[0]
        page.wait_for_timeout(50)
    raise AssertionError(f"{what}: nothing changed")


def at_start(page, box) -> list[str]:
    """Reset an explorer with the mouse, and wait until it looks as it did when the page was opened."""
    box.get_by_role("button", name="reset").click()
    # If it was at its start already, nothing shows when the reset is done; a move made before that is undone by it.
    page.wait_for_timeout(250)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    return as_opened(page, box)


def as_opened(page, box) -> list[str]:
    for _ in range(400):
        now = look(box)
        if now in page.opened:
            return now
        page.wait_for_timeout(50)
    raise AssertionError("it does not go back to where it started")


def explorer(page, name: str):
    box = page.locator(".kvzero-explorer").nth(EXPLORERS.index(name))
    box.scroll_into_view_if_needed()
    return box


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_control_moves_with_the_keyboard(page, name):
    box, redrawn = explorer(page, name), []
    sliders = box.locator(".widget-hslider:not(:has([disabled]))")
    for index in range(sliders.count()):
        before = at_start(page, box)
        handle = sliders.nth(index).locator(".noUi-handle").first
        handle.focus()
        low, now = (float(handle.get_attribute(f"aria-value{key}")) for key in ("min", "now"))
        page.keyboard.press("ArrowLeft" if now > low else "ArrowRight")
        redrawn.append(changed(page, box, before, f"{name}, slider {index}, arrow key"))
    menus = box.locator(".widget-dropdown select")
    for index in range(menus.count()):
        name_of = menus.nth(index).locator("xpath=..").locator("label").inner_text()
        if menus.nth(index).locator("option").count() < 2 or name_of == "move by":
            continue  # nothing to choose, or only the width of a step
        before = at_start(page, box)
        menus.nth(index).focus()
        for key in ("Space", "ArrowDown", "Enter"):  # a bare arrow is JupyterLab's own: it moves to the next cell
            page.keyboard.press(key)
            page.wait_for_timeout(100)
        redrawn.append(changed(page, box, before, f"{name}, {name_of}, by keyboard"))
    assert sum(redrawn) > len(redrawn) / 2, "most moves of one step change the picture, not only the numbers"
    box.get_by_role("button", name="reset").focus()
    page.keyboard.press("Enter")
    assert as_opened(page, box) == at_start(page, box), "the keyboard resets as the mouse does"
    assert page.complaints == []


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_control_moves_with_the_mouse(page, name):
    box, redrawn = explorer(page, name), []
    presets = box.locator(".widget-dropdown select").first
    before = at_start(page, box)
    presets.select_option(label=presets.locator("option").all_inner_texts()[1])
    redrawn.append(changed(page, box, before, f"{name}, preset"))
    sliders = box.locator(".widget-hslider:not(:has([disabled]))")
    for index in range(sliders.count()):
        before = at_start(page, box)
        bar = sliders.nth(index).locator(".noUi-target")
        bar.scroll_into_view_if_needed()
        handle = bar.locator(".noUi-handle").first
        low, now, high = (float(handle.get_attribute(f"aria-value{key}")) for key in ("min", "now", "max"))
        place, start = bar.bounding_box(), handle.bounding_box()
        middle = place["y"] + place["height"] / 2
        page.mouse.move(start["x"] + start["width"] / 2, middle)
        page.mouse.down()
        target = 0.3 if (now - low) / max(high - low, 1) > 0.6 else 0.8
        page.mouse.move(place["x"] + place["width"] * target, middle, steps=4)
        page.mouse.up()
        redrawn.append(changed(page, box, before, f"{name}, slider {index}, drag"))
    for button in box.locator(".widget-toggle-button:not(.mod-active)").all():
        before = at_start(page, box)
        button.click()
        redrawn.append(changed(page, box, before, f"{name}, toggle"))
    assert sum(redrawn) > len(redrawn) / 2, "a long move changes the picture, not only the numbers"
    assert page.complaints == []


def test_pictures_are_described_and_errors_are_not_there(page):
    for box in page.locator(".kvzero-explorer").all():
        at_start(page, box)
        alt = box.locator("img").get_attribute("alt")
        assert alt and alt == box.locator("[role=status]").text_content()
        assert box.locator("[role=alert]").count() == 0
        width = box.locator("img").evaluate("image => [image.naturalWidth, image.clientWidth, image.clientHeight]")
        assert width[0] > width[1] > 500 and width[2] > 100
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert page.complaints == []


def test_the_static_site_is_described_and_asks_nobody(browser, tmp_path):
    notebook = write_notebook(tmp_path / "01_seen.ipynb", [MAP, RACE, "id_race_knob()"])
    assert main(["run", str(notebook), "--device", "cpu", "-o", str(tmp_path / "out"), "--html"]) == 0
    for width in (375, 1280):
        page = browser.new_page(viewport={"width": width, "height": 800})
        asked, complaints = [], []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("console", lambda line, found=complaints: found.append(line.text) if line.type == "error" else None)
        page.goto((tmp_path / "out" / "site" / "01_seen.html").as_uri())
        pictures = page.locator("img").evaluate_all(
            "found => found.map(one => [one.alt, one.naturalWidth, one.clientWidth])"
        )
        assert len(pictures) == 2, "one picture for each figure; the explorer adds none"
        for alt, natural, shown in pictures:
            # On a phone a figure keeps a legible size and scrolls inside its own frame.
            assert len(alt) > 20 and natural > 1000 and 600 < shown <= 880
        body = page.locator("body").inner_text()
        assert "past the end" in page.content() and pictures[0][0] in body
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page does not scroll sideways"
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert complaints == []
        page.close()
