"""A known set's files on this machine: where they may lie, and whether they are the official ones."""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cnnkit.data.dataset import Split
from cnnkit.data.formats import inflated

PROJECT = Path(__file__).parents[2]
SYSTEM = Path("/usr/share/datasets")


class File(NamedTuple):
    """One file of a set: name, size and SHA-256 of its content, that is, once unpacked."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """A set known by name.

    Args:
        name: as `load` takes it, and the name of its folder.
        title: what it is, for people.
        files: what it consists of.
        mirrors: URLs to try in order: of the archive, or of the folder that holds the gzipped files.
        classes: the name of each label.
        parse: from the files' contents by name to (train, test).
        archive: name of the tar.gz that holds all files, if it comes as one.
        aliases: other folders, below the same roots, where other tools keep the same files.
    """

    name: str
    title: str
    files: tuple[File, ...]
    mirrors: tuple[str, ...]
    classes: tuple[str, ...]
    parse: Callable[[Mapping[str, bytes]], tuple[Split, Split]]
    archive: str | None = None
    aliases: tuple[str, ...] = ()


class Damaged(ValueError):
    """A file whose content is not the official one."""


def homes(source: Source, folder: str | os.PathLike | None = None) -> list[Path]:
    """The folders where a set's files may lie, in the order they are looked at.

    The folder given; else ``CNNKIT_DATA``, the repository's and the working directory's ``data``, the
    per-user cache, and what the system's packages install.
    """
    names = (source.name, *source.aliases)
    if folder is not None:
        root = Path(folder).expanduser()
        return [root, *(root / name for name in names)]
    roots = [*_writable_roots(), Path.cwd() / "data", user_cache(), SYSTEM]
    return list(dict.fromkeys(root / name for root in roots for name in names))


def target(source: Source, folder: str | os.PathLike | None = None) -> Path:
    """The folder that a set is fetched into."""
    root = Path(folder).expanduser() if folder is not None else [*_writable_roots(), user_cache()][0]
    return root / source.name


def missing(source: Source, home: Path) -> list[str]:
    """Names of the set's files that are not in this folder, gzipped or not."""
    if source.archive and (home / source.archive).is_file():
        return []
    return [file.name for file in source.files if locate(home, file) is None]


def _writable_roots() -> list[Path]:
    wanted = os.environ.get("CNNKIT_DATA")
    roots = [Path(wanted).expanduser()] if wanted else []
    if (PROJECT / "pyproject.toml").is_file():
        roots.append(PROJECT / "data")
    return roots


def user_cache() -> Path:
    """Where what can be had again is kept for this user."""
    import pooch

    return Path(pooch.os_cache("cnnkit"))


def locate(home: Path, file: File) -> Path | None:
    """Where in this folder a file is, gzipped or not."""
    for name in (file.name, f"{file.name}.gz"):
        if (home / name).is_file():
            return home / name
    return None


def read(source: Source, home: Path) -> dict[str, bytes]:
    """The verified content of each file of a set in a folder that has them all.

    Raises:
        ValueError: files are damaged; they were set aside.
    """
    paths = {file: path for file in source.files if (path := locate(home, file))}
    if source.archive and len(paths) < len(source.files):
        return _read_archive(source, home, home / source.archive)

    def one(item: tuple[File, Path]) -> bytes | Damaged:
        file, path = item
        try:
            return verified(path.read_bytes(), file, str(path))
        except Damaged as error:
            return _set_aside(source, path, error)

    with ThreadPoolExecutor() as pool:  # reading, unpacking and hashing all leave the interpreter free
        found = dict(zip((file.name for file in paths), pool.map(one, paths.items()), strict=True))
    damaged = [str(error) for error in found.values() if isinstance(error, Damaged)]
    if damaged:
        raise Damaged("\n".join(damaged))
    return {name: content for name, content in found.items() if isinstance(content, bytes)}


def _read_archive(source: Source, home: Path, archive: Path) -> dict[str, bytes]:
    try:
        found = unpacked(source, archive)
    except Damaged as error:
        raise _set_aside(source, archive, error) from None
    with suppress(OSError):  # where nothing can be written, the next call unpacks it again
        for name, content in found.items():
            store(home / name, content)
    return found


def verified(raw: bytes, file: File, what: str) -> bytes:
    """The content of a file's bytes if it is the official one."""
    try:
        content = inflated(raw, what, file.size)
    except ValueError as error:
        raise Damaged(str(error)) from None
    if len(content) != file.size:
        raise Damaged(f"{what}: {len(content):,} bytes of content, expected {file.size:,}")
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise Damaged(f"{what}: wrong content: SHA-256 is {found}, expected {file.sha256}")
    return content


def unpacked(source: Source, archive: Path) -> dict[str, bytes]:
    """The verified content of every file of the set in a tar.gz; other members are left alone."""
    wanted = {file.name: file for file in source.files}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = wanted.get(member.name.rpartition("/")[2])
                if file and member.isfile():
                    stream = tar.extractfile(member)
                    assert stream is not None
                    found[file.name] = verified(stream.read(file.size + 1), file, f"{archive}, {member.name}")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Damaged(f"{archive}: the archive is cut short or damaged ({error})") from None
    except OSError as error:
        if error.errno is not None:  # gzip's own complaints are OSErrors without a number
            raise
        raise Damaged(f"{archive}: not a gzipped archive ({error})") from None
    absent = [name for name in wanted if name not in found]
    if absent:
        raise Damaged(f"{archive}: the archive lacks {', '.join(absent)}")
    return found


def _set_aside(source: Source, path: Path, error: Damaged) -> Damaged:
    """Rename a damaged file so that the next call fetches it anew; the error to raise."""
    if path.parent.name != source.name:  # a folder of another tool, or one that may hold another set
        return Damaged(f"{error}. Move that file away, or give the folder of {source.title}")
    bad = path.with_name(path.name + ".bad")
    try:
        os.replace(path, bad)
    except OSError as reason:
        return Damaged(f"{error}. It could not be set aside ({reason.strerror}): delete it, then load again")
    return Damaged(f"{error}. It was set aside as {bad.name}: load again to fetch a good one")


def store(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
