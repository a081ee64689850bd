"""Fetching a known set's files: mirrors, SHA-256, atomic rename, one process at a time."""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cnnkit.data.files import (
    Damaged,
    File,
    Source,
    homes,
    locate,
    missing,
    read,
    store,
    target,
    unpacked,
    verified,
)

PATIENCE = 1800.0  # seconds to wait for another process that is fetching the same set


def contents(source: Source, folder: str | os.PathLike | None = None) -> tuple[dict[str, bytes], Path]:
    """The verified content of each file of a set, and the folder they lie in; fetched if they lie nowhere.

    Args:
        source: the set.
        folder: look (and fetch) here only; None looks in the places of `homes`.

    Raises:
        ValueError: a file found is damaged; it was set aside so that the next call fetches it anew.
        ConnectionError: no mirror gave the file.
        OSError: the folder cannot be written, or the disk is full.
    """
    for home in homes(source, folder):
        if not missing(source, home):
            return read(source, home), home
    home = target(source, folder)
    try:
        _fetch(source, home)
    except ConnectionError as error:
        raise ConnectionError(f"{error}{_partly(source, folder)}") from None
    return read(source, home), home


def _fetch(source: Source, home: Path) -> None:
    """Fetch what is missing in home, one process at a time."""
    with _disk(home), _alone(source, home):
        if source.archive:
            if missing(source, home):
                _fetch_archive(source, home)
            return
        for file in source.files:
            if locate(home, file) is not None:
                continue

            def keep(part: Path, file: File = file) -> None:
                verified(part.read_bytes(), file, "its answer")
                os.replace(part, home / f"{file.name}.gz")

            urls = [f"{mirror}{file.name}.gz" for mirror in source.mirrors]
            _from_mirrors(source, home, f"{file.name}.gz", urls, keep)


def _fetch_archive(source: Source, home: Path) -> None:
    assert source.archive is not None

    def keep(part: Path) -> None:
        for name, content in unpacked(source, part).items():
            store(home / name, content)

    _from_mirrors(source, home, source.archive, source.mirrors, keep)


def _from_mirrors(
    source: Source, home: Path, name: str, urls: Sequence[str], keep: Callable[[Path], None]
) -> None:
    """Try one URL after the other until `keep` accepts what came."""
    import requests

    failures = []
    for url in urls:
        part = home / f".{name}.part"  # one name, so that a killed process leaves no heap of them
        try:
            _get(url, part, source)
            keep(part)
            return
        except requests.RequestException as error:
            failures.append(f"{url}: {_reason(error)}")
        except Damaged as error:
            failures.append(f"{url}: {str(error).replace(str(part), 'its answer')}")
        finally:
            part.unlink(missing_ok=True)
    tried = "\n  ".join(failures)
    raise ConnectionError(
        f"{source.title} is not on this machine and no mirror gave {name}:\n  {tried}\n"
        f"Fetch {name} some other way and put it into {home} (or, below the folder that the environment "
        f"variable CNNKIT_DATA names, into {source.name}/)."
    )


def _partly(source: Source, folder: str | os.PathLike | None) -> str:
    """What the folders lack that hold a part of the set: somebody may have put it there by hand."""
    lacks = {home: missing(source, home) for home in homes(source, folder)}
    return "".join(
        f"\n{home} lacks {', '.join(gone)}."
        for home, gone in lacks.items()
        if 0 < len(gone) < len(source.files)
    )


def _get(url: str, part: Path, source: Source) -> None:
    """Download a URL to a path, with a bar in a terminal and one line elsewhere."""
    import pooch

    terminal = sys.stderr.isatty()
    sys.stderr.write(f"{source.name}: fetching {url}\n")
    pooch.HTTPDownloader(progressbar=terminal, chunk_size=1 << 18, timeout=30)(url, str(part), None)


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code} {response.reason}"
    kind = type(error).__name__
    if kind in ("ConnectionError", "ConnectTimeout", "ProxyError", "SSLError"):
        return f"cannot be reached ({kind})"
    return f"the download broke off ({kind})"


@contextmanager
def _disk(home: Path) -> Iterator[None]:
    """Make the folder, and say what to do when it cannot be written or is full."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"the disk of {home} is full: free some space"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            text = f"{home} cannot be written ({error.strerror}): make it writable"
        else:
            raise
        raise OSError(
            error.errno,
            f"{text}, or name another folder by the environment variable CNNKIT_DATA or load's folder",
        ) from error


@contextmanager
def _alone(source: Source, home: Path) -> Iterator[None]:
    """Keep other processes from fetching the same set into the same folder at once."""
    import filelock

    lock = filelock.FileLock(home / ".lock")
    try:
        lock.acquire(timeout=PATIENCE)
    except filelock.Timeout:
        raise TimeoutError(
            f"another process has been fetching {source.name} into {home} for {PATIENCE / 60:.0f} minutes: "
            "wait for it, or end it and load again"
        ) from None
    try:
        yield
    finally:
        lock.release()
