"""The command line: one module a command; `cnnkit.__main__` calls `main`."""

from cnnkit.command.main import main

__all__ = ["main"]
