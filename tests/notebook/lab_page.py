"""A JupyterLab of its own with a notebook in it, driven in Chromium cell by cell."""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing():
    """Why these tests cannot run here; "" if they can."""
    absent = [name for name in ("playwright", "jupyterlab") if importlib.util.find_spec(name) is None]
    if CHROMIUM is None:
        absent.append("Chromium")
    return f"{' and '.join(absent)} not installed" if absent else ""


def write_notebook(path, *cells, kernel="python3"):
    """A notebook of these code cells."""
    import nbformat

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    made.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
    nbformat.write(made, path)


@contextmanager
def lab(folder, theme="light"):
    """The address of a JupyterLab that serves a folder."""
    settings = Path(folder) / ".settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": f"JupyterLab {theme.title()}"}))
    (settings / "notification.jupyterlab-settings").write_text(json.dumps({"fetchNews": "false"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = Path(folder) / ".jupyter"
    environment = os.environ | {
        "JUPYTERLAB_SETTINGS_DIR": str(Path(folder) / ".settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(Path(folder) / ".workspaces"),
        "JUPYTER_CONFIG_DIR": str(own),
        "JUPYTER_DATA_DIR": str(own),
        "IPYTHONDIR": str(own / "ipython"),
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += [
        "--ip=127.0.0.1",
        "--IdentityProvider.token=",
        "--ServerApp.password=",
        "--expose-app-in-browser",
    ]
    command += ["--LabApp.extension_manager=readonly", f"--ServerApp.root_dir={folder}"]
    log = (Path(folder) / "lab.log").open("w")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address, server, Path(folder) / "lab.log")
        yield address
    finally:
        server.terminate()
        server.wait(20)
        log.close()


class NotebookPage:
    """A notebook open in a browser's page.

    Args:
        page: playwright's.
        address: of the lab.
        path: of the notebook's file, in the lab's folder.
    """

    def __init__(self, page, address, path):
        self.page, self.path, self.address = page, path, address
        self.open()

    def open(self):
        """Open the notebook, anew if it is open."""
        page, address, name = self.page, self.address, self.path.name
        page.goto(f"{address}/lab/tree/{name}?reset")
        page.wait_for_function(
            "window.jupyterapp && window.jupyterapp.shell.currentWidget?.content?.widgets?.length"
        )
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
        )
        self.command("application:set-mode", {"mode": "single-document"})
        if page.locator("#jp-left-stack").is_visible():
            self.command("application:toggle-left-area")

    def command(self, name, arguments=None):
        """One of the lab's commands, waited for."""
        return self.page.evaluate(
            "([n, a]) => window.jupyterapp.commands.execute(n, a)", [name, arguments or {}]
        )

    def start(self, i):
        """Run a cell without waiting for it."""
        self.page.evaluate(f"window.jupyterapp.shell.currentWidget.content.activeCellIndex = {i}")
        self.page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")

    def run(self, i):
        """Run a cell to its end."""
        self.start(i)
        self.wait_idle()

    def wait_idle(self):
        """Until the kernel waits for a cell."""
        self.page.wait_for_timeout(150)
        status = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
        self.page.wait_for_function(f"{status} === 'idle'")

    def outputs(self, i):
        """What stands under a cell."""
        return self.page.locator(".jp-Notebook-cell").nth(i).locator(".jp-OutputArea-output")

    def wait_text(self, i, pattern):
        """Until a cell's outputs hold such a text, which is given back."""
        text = self.outputs(i).filter(has_text=re.compile(pattern)).first
        text.wait_for()
        return text.inner_text()

    def interrupt(self):
        """The stop button of the toolbar."""
        self.command("notebook:interrupt-kernel")

    def save(self):
        """The notebook as it is saved."""
        import nbformat

        self.command("docmanager:save")
        return nbformat.read(self.path, 4)

    def evaluate(self, i, javascript):
        """A value of the first output under a cell: an expression in ``node``."""
        return self.outputs(i).first.evaluate(f"node => {javascript}")


def _wait_for(address, server, log):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended:\n{log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(f"{address}/api/status", timeout=2).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not answer:\n{log.read_text()[-2000:]}")
