"""Sets that come as one archive: fetched, unpacked, and what is wrong with one."""

import errno
import pathlib

import pytest

from cnnkit.data.download import contents
from tests.data.served import ONE, TWO, WHOLE, packed, pair

pytestmark = pytest.mark.usefixtures("places")


def bundle(*mirrors):
    """A set of two files in one archive."""
    return pair(*mirrors, archive="pair.tar.gz")


def test_an_archive_is_fetched_unpacked_and_not_kept(places, web):
    web.put("short.tar.gz", packed(**WHOLE)[:-200])
    web.put("lacks.tar.gz", packed(one=ONE))
    web.put("wrong.tar.gz", packed(one=ONE, two=TWO[1:] + b"!"))
    web.put("html.tar.gz", b"<html>Please sign in</html>")
    web.put("good.tar.gz", packed(readme=b"hello", **WHOLE))
    source = bundle(*(f"{web.url}{name}.tar.gz" for name in ("short", "lacks", "wrong", "html", "good")))
    found, home = contents(source)
    assert found == WHOLE
    assert sorted(p.name for p in home.iterdir()) == [".lock", "one", "two"]
    assert len(web.asked) == 5
    assert contents(source)[0] == WHOLE
    assert len(web.asked) == 5


def test_what_is_wrong_with_an_archive_is_said(places, web):
    web.put("short.tar.gz", packed(**WHOLE)[:-200])
    web.put("lacks.tar.gz", packed(one=ONE))
    web.put("wrong.tar.gz", packed(one=ONE, two=TWO[1:] + b"!"))
    web.put("html.tar.gz", b"<html>Please sign in</html>")
    names = ("short", "lacks", "wrong", "html")
    with pytest.raises(ConnectionError) as caught:
        contents(bundle(*(f"{web.url}{name}.tar.gz" for name in names)))
    text = str(caught.value)
    assert "short.tar.gz: its answer: the archive is cut short or damaged" in text
    assert "lacks.tar.gz: its answer: the archive lacks two" in text
    assert "wrong.tar.gz: its answer, folder/two: wrong content: SHA-256" in text
    assert "html.tar.gz: its answer: " in text
    assert "Fetch pair.tar.gz some other way" in text


def test_an_archive_put_there_by_hand_is_unpacked_once(places):
    home = places / "cache" / "cnnkit" / "pair"
    home.mkdir(parents=True)
    (home / "pair.tar.gz").write_bytes(packed(**WHOLE))
    assert contents(bundle())[0] == WHOLE
    assert (home / "one").read_bytes() == ONE
    (home / "pair.tar.gz").unlink()
    assert contents(bundle())[0] == WHOLE


def test_an_archive_in_a_read_only_folder_is_read(places, monkeypatch):
    home = places / "cache" / "cnnkit" / "pair"
    home.mkdir(parents=True)
    (home / "pair.tar.gz").write_bytes(packed(**WHOLE))

    def refuse(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(pathlib.Path, "write_bytes", refuse)
    assert contents(bundle())[0] == WHOLE
    assert [p.name for p in home.iterdir()] == ["pair.tar.gz"]


def test_a_damaged_archive_is_set_aside(places, web):
    home = places / "cache" / "cnnkit" / "pair"
    home.mkdir(parents=True)
    (home / "pair.tar.gz").write_bytes(packed(**WHOLE)[:300])
    web.put("good.tar.gz", packed(**WHOLE))
    source = bundle(f"{web.url}good.tar.gz")
    with pytest.raises(
        ValueError, match=r"pair.tar.gz: the archive is cut short.*set aside as pair.tar.gz.bad"
    ):
        contents(source)
    assert contents(source)[0] == WHOLE
