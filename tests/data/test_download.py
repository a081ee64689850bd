"""Finding, verifying and fetching a set's files, against a web server on this machine."""

import errno
import gzip
import hashlib
import os
import pathlib
import subprocess
import sys

import filelock
import pooch
import pytest

from cnnkit.data import download
from cnnkit.data.download import contents
from tests.data.served import ONE, TWO, WHOLE, pair, put_pair, serve_pair

pytestmark = pytest.mark.usefixtures("places")


@pytest.mark.parametrize("place", ["env", "project/data", "work/data", "cache/cnnkit", "system"])
def test_files_are_found_in_each_place_without_network(places, monkeypatch, place):
    monkeypatch.setenv("CNNKIT_DATA", str(places / "env"))
    (places / "project").mkdir()
    (places / "project" / "pyproject.toml").touch()
    put_pair(places / place / "pair")
    assert contents(pair()) == (WHOLE, places / place / "pair")


def test_the_places_are_looked_at_in_order(places, monkeypatch):
    monkeypatch.setenv("CNNKIT_DATA", str(places / "env"))
    for place in ("system", "cache/cnnkit", "work/data", "env"):
        put_pair(places / place / "pair")
        assert contents(pair())[1] == places / place / "pair"


def test_a_folder_given_is_the_only_place(places):
    put_pair(places / "cache" / "cnnkit" / "pair")
    put_pair(places / "mine")
    assert contents(pair(), places / "mine")[1] == places / "mine"
    with pytest.raises(ConnectionError):
        contents(pair(), places / "empty")


def test_folders_of_other_tools_are_known(places):
    put_pair(places / "work" / "data" / "Pair" / "raw")
    assert contents(pair(aliases=("Pair/raw",)))[0] == WHOLE


def test_a_fetched_set_is_whole_verified_and_stays(places, web, capsys):
    source = pair(serve_pair(web, "good"))
    found, home = contents(source)
    assert found == WHOLE
    assert home == places / "cache" / "cnnkit" / "pair"
    assert sorted(p.name for p in home.iterdir()) == [".lock", "one.gz", "two.gz"]
    assert f"pair: fetching {web.url}good/one.gz\n" in capsys.readouterr().err
    assert contents(source)[0] == WHOLE
    assert len(web.asked) == 2


def test_downloads_go_where_the_variable_says(places, web, monkeypatch):
    monkeypatch.setenv("CNNKIT_DATA", str(places / "env"))
    assert contents(pair(serve_pair(web, "good")))[1] == places / "env" / "pair"


def test_only_what_is_missing_is_fetched(places, web):
    home = places / "cache" / "cnnkit" / "pair"
    put_pair(home)
    (home / "one").unlink()
    assert contents(pair(serve_pair(web, "good")))[0] == WHOLE
    assert web.asked == ["/good/one.gz"]


def test_bad_mirrors_are_passed_over(places, web):
    web.put("forbidden/one.gz", b"no", status=403)
    web.put("busy/one.gz", b"later", status=503)
    web.put("short/one.gz", gzip.compress(ONE)[:50], length=500)
    web.put("cut/one.gz", gzip.compress(ONE)[:50])
    web.put("wrong/one.gz", gzip.compress(ONE[:-1] + b"!"))
    web.put("html/one.gz", b"<html>Please sign in</html>")
    mirrors = [f"{web.url}{name}/" for name in ("forbidden", "busy", "short", "cut", "wrong", "html")]
    source = pair("http://127.0.0.1:9/", *mirrors, serve_pair(web, "good"))
    assert contents(source)[0] == WHOLE
    assert [path for path in web.asked if "one" in path][-1] == "/good/one.gz"
    assert not list((places / "cache" / "cnnkit" / "pair").glob("*.part"))


def test_when_all_mirrors_fail_the_error_says_what_to_do(places, web):
    web.put("forbidden/one.gz", b"no", status=403)
    web.put("short/one.gz", gzip.compress(ONE)[:50], length=500)
    web.put("cut/one.gz", gzip.compress(ONE)[:50])
    web.put("wrong/one.gz", gzip.compress(ONE[:-1] + b"!"))
    put_pair(places / "work" / "data" / "pair")
    (places / "work" / "data" / "pair" / "one").unlink()
    names = ("forbidden", "short", "cut", "wrong")
    with pytest.raises(ConnectionError) as caught:
        contents(pair("http://127.0.0.1:9/", *(f"{web.url}{name}/" for name in names)))
    text = str(caught.value)
    home = places / "cache" / "cnnkit" / "pair"
    wrong = hashlib.sha256(ONE[:-1] + b"!").hexdigest()
    assert "The Pair is not on this machine and no mirror gave one.gz:" in text
    assert "http://127.0.0.1:9/one.gz: cannot be reached" in text
    assert f"{web.url}forbidden/one.gz: HTTP 403 Forbidden" in text
    assert f"{web.url}short/one.gz: the download broke off" in text
    assert f"{web.url}cut/one.gz: its answer: the gzip file is cut short after 50 bytes" in text
    assert f"wrong content: SHA-256 is {wrong}, expected {hashlib.sha256(ONE).hexdigest()}" in text
    assert f"Fetch one.gz some other way and put it into {home} (or" in text
    assert "CNNKIT_DATA" in text
    assert f"{places / 'work' / 'data' / 'pair'} lacks one." in text
    assert not list(home.glob(".*part"))


@pytest.mark.parametrize("fault", ["wrong", "cut", "garbled", "long"])
def test_a_damaged_file_is_named_set_aside_and_fetched_anew(places, web, fault):
    whole = gzip.compress(TWO)
    damaged = {"wrong": gzip.compress(b"2" + TWO[1:]), "cut": whole[:-9], "garbled": whole[:-8] + b"\0" * 8}
    damaged["long"] = gzip.compress(TWO + b"two")
    home = places / "cache" / "cnnkit" / "pair"
    put_pair(home)
    (home / "two.gz").write_bytes(damaged[fault])
    texts = {
        "wrong": "wrong content: SHA-256",
        "cut": "cut short",
        "garbled": "damaged",
        "long": "unpacks to more than the 15,000 bytes expected",
    }
    source = pair(serve_pair(web, "good"))
    with pytest.raises(
        ValueError, match=r"set aside as two.gz.bad: load again to fetch a good one"
    ) as caught:
        contents(source)
    assert f"{home / 'two.gz'}: " in str(caught.value)
    assert texts[fault] in str(caught.value)
    assert (home / "two.gz.bad").read_bytes() == damaged[fault]
    assert contents(source)[0] == WHOLE
    assert web.asked == ["/good/two.gz"]


def test_every_damaged_file_is_named(places):
    put_pair(places / "cache" / "cnnkit" / "pair", one=ONE[1:], two=TWO[1:])
    with pytest.raises(ValueError, match=r"(?s)one.bad.*two.gz.bad"):
        contents(pair())


def test_a_damaged_file_elsewhere_is_left_alone(places):
    put_pair(places / "shelf", one=ONE[1:])
    with pytest.raises(
        ValueError, match=r"10,239 bytes of content, expected 10,240. Move that file away, or give the"
    ):
        contents(pair(), places / "shelf")
    assert (places / "shelf" / "one").is_file()


def test_a_damaged_file_in_a_read_only_folder(places, monkeypatch):
    put_pair(places / "cache" / "cnnkit" / "pair", one=ONE[1:])

    def refuse(source, destination):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(
        ValueError, match=r"could not be set aside \(Permission denied\): delete it, then load again"
    ):
        contents(pair())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ENOSPC, "the disk of .*pair is full: free some space, or name another folder .*CNNKIT_DATA"),
        (errno.EROFS, "pair cannot be written .*: make it writable, or name another folder .*CNNKIT_DATA"),
        (errno.EACCES, r"pair cannot be written \(Permission denied\)"),
    ],
)
@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_a_disk_that_is_full_or_read_only(places, web, monkeypatch, code, text, call):
    source = pair(serve_pair(web, "good"))

    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    owner = pathlib.Path if call == "mkdir" else os
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, refuse)
        with pytest.raises(OSError, match=text) as caught:
            contents(source)
    assert caught.value.errno == code
    home = places / "cache" / "cnnkit" / "pair"
    assert not home.exists() or [p.name for p in home.iterdir()] == [".lock"]
    assert contents(source)[0] == WHOLE


def test_a_disk_that_fills_while_a_file_comes(places, web, monkeypatch):
    source = pair(serve_pair(web, "good"))

    def fill(self, url, path, _):
        pathlib.Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", fill)
    with pytest.raises(OSError, match="is full: free some space"):
        contents(source)
    assert [p.name for p in (places / "cache" / "cnnkit" / "pair").iterdir()] == [".lock"]


FETCH = """
import sys
from cnnkit.data.download import contents
from cnnkit.data.files import File, Source
name, folder, mirror, size, sha = sys.argv[1:]
source = Source("single", "Single", (File(name, int(size), sha),), (mirror,), (), None)
print("ready", flush=True)
sys.stdin.readline()
print(len(contents(source, folder)[0][name]))
"""


def test_two_processes_fetch_once(places, web):
    web.pause = 0.3
    web.put("good/one.gz", gzip.compress(ONE))
    arguments = [
        "one",
        str(places / "both"),
        f"{web.url}good/",
        str(len(ONE)),
        hashlib.sha256(ONE).hexdigest(),
    ]
    root = str(pathlib.Path(download.__file__).parents[2])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", FETCH, *arguments], cwd=root, **pipes) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        assert process.communicate(timeout=60)[0] == f"{len(ONE)}\n"
        assert process.returncode == 0
    assert web.asked == ["/good/one.gz"]


def test_waiting_for_another_process_ends(places, monkeypatch):
    monkeypatch.setattr(download, "PATIENCE", 0.06)
    home = places / "cache" / "cnnkit" / "pair"
    home.mkdir(parents=True)
    with (
        filelock.FileLock(home / ".lock"),
        pytest.raises(TimeoutError, match="another process has been fetching pair into"),
    ):
        contents(pair())


def test_what_a_killed_process_left_is_no_hindrance(places, web):
    home = places / "cache" / "cnnkit" / "pair"
    home.mkdir(parents=True)
    (home / ".lock").touch()
    (home / ".one.gz.part").write_bytes(b"half")
    assert contents(pair(serve_pair(web, "good")))[0] == WHOLE
    assert sorted(p.name for p in home.iterdir()) == [".lock", "one.gz", "two.gz"]


def test_an_interrupt_leaves_no_half_file(places, web, monkeypatch):
    def interrupt(self, url, path, _):
        pathlib.Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        contents(pair(serve_pair(web, "good")))
    assert [p.name for p in (places / "cache" / "cnnkit" / "pair").iterdir()] == [".lock"]


def test_a_terminal_gets_a_bar(places, web, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    contents(pair(serve_pair(web, "good")))
    assert "100%" in capsys.readouterr().err
