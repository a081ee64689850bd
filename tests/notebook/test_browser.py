"""The panel as people see it: JupyterLab in Chromium, cell by cell."""

import re

import lab_page
import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab_page.missing()), reason=lab_page.missing() or "all there"),
]

SETUP = """
import cnnkit as ck
make = lambda **more: ck.Run(ck.dense(10), ck.load("digits").take(200, 100), batch=20, **more)
"""
CELLS = (
    SETUP,
    "run = make(epochs=10**6, folder='run'); run.start();",
    "run.control.lr_scale, run.training",
    "held = make(epochs=10**6); held.fit();",
    "held.fit(epochs=held.epoch + 1);",
    "from cnnkit import notebook; live = notebook.gpus(); live",
    "live.stop()",
    "kept = make(epochs=10**6, seed=1); kept.start();",
)
START, ASK, FIT, AGAIN, GPUS, NO_GPUS, KEPT = range(1, 8)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A notebook open in the browser, its first cell run."""
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("lab")
    lab_page.write_notebook(folder / "book.ipynb", *CELLS)
    with lab_page.lab(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=lab_page.CHROMIUM, args=lab_page.FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(60_000)
        opened = lab_page.NotebookPage(page, address, folder / "book.ipynb")
        opened.run(0)
        yield opened
        browser.close()


def epoch(text):
    return float(re.search(r"epoch (\d+\.\d)", text)[1])


def contrast(foreground, background):
    """By WCAG 2, of two colours as ``rgb(r, g, b)``."""

    def luminance(color):
        parts = [int(v) / 255 for v in re.findall(r"\d+", color)[:3]]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(foreground), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_a_run_in_the_background_moves_and_obeys(book):
    button = lambda name: book.outputs(START).get_by_role("button", name=name)
    book.run(START)
    first = epoch(book.wait_text(START, r"epoch \d+\.\d of 1000000, (training|evaluating)"))
    book.page.wait_for_timeout(2200)
    assert epoch(book.outputs(START).first.inner_text()) > first
    button("Pause").click()
    held = epoch(book.wait_text(START, "paused"))
    book.page.wait_for_timeout(1500)
    assert epoch(book.outputs(START).first.inner_text()) == held
    slider = book.page.get_by_role("slider").first
    slider.focus()
    slider.press("ArrowLeft")
    book.run(ASK)
    scale = float(re.search(r"\((0\.\d+), True\)", book.wait_text(ASK, "True"))[1])
    assert scale == pytest.approx(10**-0.05)
    button("Resume").click()
    book.wait_text(START, r"of 1000000, (training|evaluating)")
    book.page.get_by_label("against", exact=True).select_option("seconds")
    book.wait_text(START, "seconds of training")
    button("Checkpoint").click()
    book.wait_text(START, "a checkpoint goes to run")
    for width in (1280, 800):
        book.page.set_viewport_size({"width": width, "height": 1000})
        book.page.wait_for_timeout(300)
        assert book.evaluate(START, "node.scrollWidth <= node.clientWidth"), f"clipped at {width} pixels"
    button("Stop").click()
    assert "took" in book.wait_text(START, "stopped: run.fit")
    assert book.outputs(START).count() == 1
    assert button("Stop").count() == 0


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_text_and_lines_are_legible_in_both_themes(book, theme):
    book.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
    book.page.wait_for_function(f"document.body.dataset.jpThemeName === 'JupyterLab {theme}'")
    book.run(GPUS)
    book.wait_text(GPUS, "CPU")
    background = book.page.locator(".jp-Notebook").evaluate("n => getComputedStyle(n).backgroundColor")
    text = book.evaluate(GPUS, "getComputedStyle(node.querySelector('td')).color")
    line = book.evaluate(GPUS, "getComputedStyle(node.querySelector('polyline')).stroke")
    assert contrast(text, background) > 7
    assert contrast(line, background) > 3
    book.run(NO_GPUS)


def test_interrupt_stops_fit_and_the_saved_notebook_shows_the_end_when_reopened(book):
    book.start(FIT)
    book.wait_text(FIT, r"epoch \d+\.\d of 1000000, (training|evaluating)")
    assert "fit() holds this kernel" in book.outputs(FIT).first.inner_text()
    assert book.outputs(FIT).get_by_role("button").count() == 0
    book.interrupt()
    at = epoch(book.wait_text(FIT, "stopped: run.fit"))
    book.wait_text(FIT, "KeyboardInterrupt")
    book.wait_idle()
    book.run(AGAIN)
    done = epoch(book.wait_text(AGAIN, ", done"))
    assert done >= at
    saved = book.save()
    assert [o.output_type for o in saved.cells[FIT].outputs] == ["display_data", "error"]
    assert [o.output_type for o in saved.cells[AGAIN].outputs] == ["display_data"]
    book.open()
    assert epoch(book.wait_text(AGAIN, ", done")) == done
    assert book.outputs(AGAIN).locator("img").evaluate("node => node.naturalWidth") > 600


def test_a_page_loaded_anew_while_it_trains_still_steers_it_and_sees_the_end(book):
    book.run(KEPT)
    book.wait_text(KEPT, r"of 1000000, (training|evaluating)")
    book.save()
    book.open()
    first = epoch(book.wait_text(KEPT, r"of 1000000, (training|evaluating)"))
    book.page.wait_for_timeout(2200)
    assert epoch(book.outputs(KEPT).first.inner_text()) > first
    book.outputs(KEPT).get_by_role("button", name="Stop").click()
    book.wait_text(KEPT, "stopped: run.fit")
