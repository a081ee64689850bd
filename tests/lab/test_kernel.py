"""Why namespaces were refused, in words that help."""

import errno

import pytest

from cnnkit.lab import kernel


@pytest.mark.parametrize(
    ("setting", "number", "root", "advice"),
    [
        (
            "kernel/unprivileged_userns_clone=0",
            errno.EPERM,
            False,
            "sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            "kernel/apparmor_restrict_unprivileged_userns=1",
            errno.EACCES,
            False,
            "apparmor_restrict_unprivileged",
        ),
        ("user/max_user_namespaces=0", errno.ENOSPC, False, "sysctl user.max_user_namespaces=10000"),
        ("kernel/other=1", errno.EPERM, True, "--cap-add=SYS_ADMIN --cap-add=NET_ADMIN"),
        ("kernel/other=1", errno.EPERM, False, "Run it as root, or ask for unprivileged user namespaces"),
    ],
)
def test_a_refusal_says_what_to_do(tmp_path, setting, number, root, advice):
    name, value = setting.split("=")
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(value + "\n")
    text = kernel.refusal(number, root, tmp_path)
    assert text.startswith("this system does not allow network namespaces (")
    assert advice in text
