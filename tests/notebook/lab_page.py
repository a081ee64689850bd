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
OLDER = Path(sys.prefix) / "ipykernel-6"  # ipykernel alone, of the version before, where `make test` puts it
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing():
    """Why these tests cannot run here; "" if they can."""
    absent = [name for name in ("playwright", "jupyterlab") if importlib.util.find_spec(name) is None]
    if CHROMIUM is None:
        absent.append("Chromium")
    return f"{' and '.join(absent)} not installed" if absent else ""


def write_notebook(path, cells, kernel="python3"):
    """A notebook of these cells, nothing run; gives where its code cells stand."""
    import nbformat

    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
    nbformat.write(made, path)
    return [i for i, cell in enumerate(cells) if cell.cell_type == "code"]


def write_kernels(folder):
    """Kernels by name for that data folder: python3, and python3-older where the older ipykernel lies."""
    for name, first in (("python3", []), ("python3-older", [OLDER])):
        if all(path.is_dir() for path in first):
            home = Path(folder) / "kernels" / name
            home.mkdir(parents=True)
            path = os.pathsep.join(map(str, [*first, ROOT]))
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            kernel = {"argv": argv, "display_name": name, "language": "python", "env": {"PYTHONPATH": path}}
            (home / "kernel.json").write_text(json.dumps(kernel))


@contextmanager
def lab(folder, theme="light", **environment):
    """The address of a JupyterLab that serves a folder.

    Args:
        folder: that it serves.
        theme: ``"light"`` or ``"dark"``.
        environment: of its kernels, besides what this process has.
    """
    settings = Path(folder) / ".settings" / "@jupyterlab"
    for plugin, chosen in {
        "apputils-extension/themes": {"theme": f"JupyterLab {theme.title()}"},
        "apputils-extension/notification": {"fetchNews": "false"},
        "notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight stay in the page
    }.items():
        path = settings / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(chosen))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = Path(folder) / ".jupyter"
    write_kernels(own)
    environment = (
        os.environ
        | environment
        | {
            "JUPYTERLAB_SETTINGS_DIR": str(Path(folder) / ".settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(Path(folder) / ".workspaces"),
            "JUPYTER_CONFIG_DIR": str(own),
            "JUPYTER_DATA_DIR": str(own),
            "IPYTHONDIR": str(own / "ipython"),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
        }
    )
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += [
        "--ip=127.0.0.1",
        "--IdentityProvider.token=",
        "--ServerApp.password=",
        "--expose-app-in-browser",
    ]
    command += ["--LabApp.extension_manager=readonly", f"--ServerApp.root_dir={folder}"]
    said = Path(folder) / "lab.log"
    with said.open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_for(address, server, said)
            yield address
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


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
        """Open the notebook, anew if it is open: what was not saved is gone, its kernel lives on."""
        if not self.page.evaluate("!!window.jupyterapp"):
            self.load()
            return
        self.page.evaluate("window.jupyterapp.shell.currentWidget?.dispose()")
        self.command("docmanager:open", {"path": self.path.name})
        self._wait_open()

    def load(self):
        """Load the whole page with the notebook in it, anew if it is open."""
        self.page.goto(f"{self.address}/lab/tree/{self.path.name}?reset")
        self._wait_open()
        self.command("application:set-mode", {"mode": "single-document"})
        if self.page.locator("#jp-left-stack").is_visible():
            self.command("application:toggle-left-area")

    def _wait_open(self):
        current = "window.jupyterapp?.shell.currentWidget"
        for until in (
            f"{current}?.context?.path === '{self.path.name}' && {current}.content?.widgets?.length",
            f"['idle', 'busy'].includes({current}.sessionContext?.session?.kernel?.status)",
        ):
            self.page.wait_for_function(until)

    def command(self, name, arguments=None):
        """One of the lab's commands, waited for."""
        run = "([n, a]) => window.jupyterapp.commands.execute(n, a).then(() => null)"
        self.page.evaluate(run, [name, arguments or {}])

    def start(self, i):
        """Run a cell without waiting for it."""
        self._choose(i)
        self.page.evaluate(
            "void (window.lastRun = window.jupyterapp.commands.execute('notebook:run-cell').then(() => null))"
        )

    def wait_end(self):
        """Until the cell that was started has ended, and the kernel takes the next."""
        self.page.evaluate("window.lastRun")

    def run(self, i):
        """Run a cell to its end."""
        self._choose(i)
        self.command("notebook:run-cell")

    def _choose(self, i):
        self.page.evaluate(f"window.jupyterapp.shell.currentWidget.content.activeCellIndex = {i}")

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
    end = time.monotonic() + 180
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended:\n{log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(f"{address}/api/status", timeout=2).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not answer:\n{log.read_text()[-2000:]}")
