"""A report in a real browser, Debian's chromium: it renders, without errors, on a phone and in the dark.

The tests run where `chromium` is on the path. With CI=true, as root and with apt-get, they install it; else they are skipped.
"""

import html
import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from privopt.report import Contents, render_page
from tests.report.finished import train_evil, train_patients

NARROW = 400
SECONDS = 120
MEASURE = """<script>
const inside = ".scroll table, svg, .skip, details:not([open])";
const boxes = [...document.querySelectorAll("body *")].filter(one => !one.closest(inside));
const body = getComputedStyle(document.body);
top.document.documentElement.dataset.found = JSON.stringify({
  width: innerWidth,
  needed: document.documentElement.scrollWidth,
  wide: boxes.filter(one => one.getBoundingClientRect().right > innerWidth + 0.5).map(one => one.outerHTML.slice(0, 80)),
  ground: body.backgroundColor, ink: body.color,
  claim: document.querySelector(".claim").getBoundingClientRect().height,
  plots: [...document.querySelectorAll("svg.plot")].map(one => one.getBoundingClientRect().width),
  owned: Boolean(window.owned),
});
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None and os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]):
            subprocess.run(command, capture_output=True, timeout=600)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies of reports that measure themselves; the policy of the page, which forbids scripts, is taken out of them."""
    found = {}
    for name, train in (("patients", train_patients), ("evil", train_evil)):
        folder = tmp_path_factory.mktemp(name)
        text = render_page(Contents.of(train(folder)))
        plain = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        assert plain != text
        found[name] = folder / "page.html"
        found[name].write_text(plain.replace("</body>", f"{MEASURE}</body>"))
        (folder / "whole.html").write_text(text)
    return found


def browse(chromium: str, page: Path, *, width: int = 1200, dark: bool = False) -> tuple[str, str]:
    """The page as it is after it was loaded, and what the browser's console says.

    A window has at least 500 pixels, so a narrower page is loaded into a frame.
    """
    frame = page.with_name("frame.html")
    inner = f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{html.escape(page.read_text())}"></iframe>'
    frame.write_text(f'<!doctype html><html style="color-scheme: light dark"><meta charset="utf-8"><body>{inner}')
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,900", "--dump-dom"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--user-data-dir={page.parent / 'profile'}"]
    file = frame if width < 500 else page
    done = subprocess.run([chromium, *options, file.as_uri()], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def measure(chromium: str, page: Path, **options: Any) -> dict[str, Any]:
    dom, said = browse(chromium, page, **options)
    assert not said
    found = re.search(r'data-found="([^"]*)"', dom)
    assert found is not None, dom[:2000]
    measured: dict[str, Any] = json.loads(html.unescape(found[1]))
    return measured


def brightness(colour: str) -> float:
    red, green, blue = map(float, re.findall(r"\d+", colour)[:3])
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


@pytest.mark.parametrize("name", ["patients", "evil"])
def test_a_report_fits_on_a_phone(chromium: str, pages: dict[str, Path], name: str) -> None:
    found = measure(chromium, pages[name], width=NARROW)
    assert found["width"] == NARROW
    assert found["needed"] <= NARROW
    assert found["wide"] == []
    assert found["claim"] > 0
    assert not found["owned"]
    assert len(found["plots"]) == (3 if find_spec("matplotlib") else 0)
    assert all(300 < width <= NARROW for width in found["plots"])


def test_a_page_that_is_too_wide_would_be_noticed(chromium: str, pages: dict[str, Path], tmp_path: Path) -> None:
    wide = tmp_path / "page.html"
    wide.write_text(pages["patients"].read_text().replace("<h1>", '<h1 style="width: 450px">'))
    found = measure(chromium, wide, width=NARROW)
    assert found["needed"] > NARROW
    assert found["wide"]


def test_a_report_is_dark_in_the_dark_and_light_in_the_light(chromium: str, pages: dict[str, Path]) -> None:
    light, dark = (measure(chromium, pages["patients"], dark=dark) for dark in (False, True))
    assert brightness(light["ground"]) > 0.9 > 0.3 > brightness(light["ink"])
    assert brightness(dark["ground"]) < 0.15 < 0.8 < brightness(dark["ink"])


def test_the_whole_page_loads_without_a_word_on_the_console(chromium: str, pages: dict[str, Path]) -> None:
    for page in pages.values():
        dom, said = browse(chromium, page.with_name("whole.html"))
        assert said == ""
        assert "What is protected" in dom


def count_pages_on_paper(chromium: str, page: Path) -> int:
    paper = page.with_suffix(".pdf")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}"]
    subprocess.run([*command, f"--print-to-pdf={paper}", page.as_uri()], capture_output=True, timeout=SECONDS, check=True)
    return len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))


def test_what_is_folded_on_the_screen_is_on_paper(chromium: str, pages: dict[str, Path], tmp_path: Path) -> None:
    text = pages["patients"].with_name("whole.html").read_text()
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "folded.html").write_text(text.replace("details::details-content", "details.none"))
    assert count_pages_on_paper(chromium, tmp_path / "page.html") > count_pages_on_paper(chromium, tmp_path / "folded.html") > 1


def test_the_pages_policy_stops_scripts(chromium: str, pages: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(pages["patients"].with_name("whole.html").read_text().replace("</body>", f"{MEASURE}</body>"))
    dom, said = browse(chromium, page)
    assert "data-found" not in dom.partition("<head>")[0]
    assert "Content Security Policy" in said
