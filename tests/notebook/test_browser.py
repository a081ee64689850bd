"""The first notebook as people see it: JupyterLab in Chromium, cell by cell, with the older kernel and the newer."""

import re

import lab_page
import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab_page.missing()), reason=lab_page.missing() or "all there"),
]

FIRST = lab_page.ROOT / "notebooks" / "00_start.py"
MORE = (
    "import ipykernel, time; int(ipykernel.__version__.split('.')[0])",
    "run.start(epochs=10**6);",
    "before = run.epochs_done; time.sleep(0.4); run.phase, run.epochs_done == before, run.control.lr_scale",
    "run.fit();",
    "run.fit(epochs=run.epoch + 1);",
    "run.start(epochs=10**6); run.pause()",
)
KERNELS = [
    pytest.param("python3", 7, id="ipykernel 7"),
    pytest.param(
        "python3-older",
        6,
        id="ipykernel 6",
        marks=[
            pytest.mark.long,
            pytest.mark.skipif(not lab_page.OLDER.is_dir(), reason=f"no ipykernel 6 in {lab_page.OLDER}"),
        ],
    ),
]
GOES = r"of 1000000, (training|evaluating)"
WIDTHS = (1280, 800)


@pytest.fixture(scope="module")
def lab(tmp_path_factory, compiling_once):
    """A browser's page and the address of a JupyterLab, with the folder that it serves."""
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("lab")
    smoke = {"CNNKIT_SMOKE": "1", **compiling_once}
    with lab_page.lab(folder, **smoke) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=lab_page.CHROMIUM, args=lab_page.FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(180_000)
        yield page, address, folder
        browser.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kernel", "version"), KERNELS)
def test_the_first_notebook_step_by_step(lab, kernel, version):
    import jupytext
    import nbformat

    page, address, folder = lab
    cells = [*jupytext.read(FIRST).cells, *map(nbformat.v4.new_code_cell, MORE)]
    code = lab_page.write_notebook(folder / f"{kernel}.ipynb", cells, kernel)
    *first, which, start, ask, held, again, kept = code
    book = lab_page.NotebookPage(page, address, folder / f"{kernel}.ipynb")
    runs_cell_by_cell(book, first)
    book.run(which)
    assert book.wait_text(which, r"\d") == str(version)
    moves_pauses_and_obeys(book, start, ask)
    is_interrupted_and_goes_on(book, held, again)
    is_there_when_opened_again(book, held, again, kept, book.load if version == 7 else book.open)


def runs_cell_by_cell(book, cells):
    """Each cell of the notebook shows what it should: pictures, the panel's end, the table."""
    for i in cells:
        book.run(i)
    look, fit, table, *others = cells
    assert "epoch 2.0 of 2, done" in book.wait_text(fit, "done")
    assert "parameters" in book.wait_text(table, "conv")
    widths = [width(book, i) for i in (look, fit, *others)]
    assert len(widths) == 5
    assert all(400 < wide <= 1100 for wide in widths), widths


def moves_pauses_and_obeys(book, start, ask):
    """The panel of a run in the background: seen to move; buttons, slider and axis act; nothing is cut off."""
    panel, button = book.outputs(start), lambda name: book.outputs(start).get_by_role("button", name=name)
    book.run(start)
    moves(book, start)
    button("Pause").click()
    held = epoch(book.wait_text(start, ", paused"))
    slider = panel.get_by_role("slider").first
    slider.focus()
    slider.press("ArrowLeft")
    book.run(ask)
    phase, still, scale = eval(book.wait_text(ask, "paused"))
    assert (phase, still, scale) == ("paused", True, pytest.approx(10**-0.05))
    assert epoch(panel.first.inner_text()) == held
    for theme in ("Dark", "Light"):
        is_legible(book, start, theme)
    for wide in WIDTHS:
        book.page.set_viewport_size({"width": wide, "height": 1000})
        book.page.wait_for_function(f"window.innerWidth === {wide}")
        assert book.evaluate(start, "node.scrollWidth <= node.clientWidth"), f"cut off at {wide} pixels"
        assert not book.evaluate(start, OVERLAPS), f"overlaps at {wide} pixels"
    book.page.set_viewport_size({"width": 1280, "height": 1000})
    button("Resume").click()
    moves(book, start)
    panel.get_by_label("against", exact=True).select_option("seconds")
    book.wait_text(start, "seconds of training")
    button("Stop").click()
    assert "took" in book.wait_text(start, "stopped: run.fit")
    assert panel.count() == 1
    button("Stop").wait_for(state="detached")


def is_interrupted_and_goes_on(book, held, again):
    """The stop button of the toolbar ends ``fit()``, which has no buttons and says why, and the run is whole."""
    book.start(held)
    book.wait_text(held, GOES)
    assert "fit() holds this kernel" in book.outputs(held).first.inner_text()
    assert book.outputs(held).get_by_role("button").count() == 0
    book.interrupt()
    at = epoch(book.wait_text(held, "stopped: run.fit"))
    book.wait_text(held, "KeyboardInterrupt")
    book.wait_end()
    book.run(again)
    assert epoch(book.wait_text(again, ", done")) >= at


def is_there_when_opened_again(book, held, again, kept, open_again):
    """The saved file has one output a panel; opened anew it shows the end, and a run still there obeys."""
    done = epoch(book.outputs(again).first.inner_text())
    book.run(kept)
    book.wait_text(kept, ", paused")
    saved = book.save()
    assert [o.output_type for o in saved.cells[held].outputs] == ["display_data", "error"]
    assert [o.output_type for o in saved.cells[again].outputs] == ["display_data"]
    open_again()
    assert epoch(book.wait_text(again, ", done")) == done
    assert width(book, again) > 600
    button = lambda name: book.outputs(kept).get_by_role("button", name=name)
    button("Resume").click()
    moves(book, kept)
    button("Stop").click()
    book.wait_text(kept, "stopped: run.fit")


# --- what is read off the page ---------------------------------------------------------------------------

OVERLAPS = """[...node.querySelectorAll('svg text')].some((a, i, all) => all.slice(i + 1).some(b => {
    const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
    return p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2;
}))"""


def moves(book, i):
    """Until the panel has been seen at two different epochs."""
    first = epoch(book.wait_text(i, rf"epoch \d+\.\d {GOES}"))
    text = (
        "document.querySelectorAll('.jp-Notebook-cell')[i].querySelector('.jp-OutputArea-output').innerText"
    )
    book.page.wait_for_function(
        f"([i, first]) => parseFloat({text}.match(/epoch (\\d+\\.\\d)/)[1]) > first", arg=[i, first]
    )


def epoch(text):
    return float(re.search(r"epoch (\d+\.\d)", text)[1])


def width(book, i):
    """Of the picture under a cell, once it is there."""
    picture = book.outputs(i).locator("img").first
    picture.wait_for()
    return picture.evaluate("node => node.decode().then(() => node.width)")


def is_legible(book, i, theme):
    """By the contrast that WCAG 2 asks of text (7, its best grade) and of lines (3)."""
    book.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
    book.page.wait_for_function(f"document.body.dataset.jpThemeName === 'JupyterLab {theme}'")
    background = book.page.locator(".jp-Notebook").evaluate("n => getComputedStyle(n).backgroundColor")
    text = book.evaluate(i, "getComputedStyle(node.querySelector('td')).color")
    lines = book.evaluate(
        i, "[...node.querySelectorAll('polyline, path')].map(n => getComputedStyle(n).stroke)"
    )
    assert contrast(text, background) > 7, theme
    assert len(lines) > 2
    assert [line for line in lines if contrast(line, background) <= 3] == [], theme


def contrast(foreground, background):
    """By WCAG 2, of two colours as ``rgb(r, g, b)``."""

    def luminance(color):
        parts = [int(v) / 255 for v in re.findall(r"\d+", color)[:3]]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(foreground), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
