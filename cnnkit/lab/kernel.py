"""The few Linux calls that Python lacks: namespaces, mounts, host names, and why they were refused."""

import contextlib
import ctypes
import errno
import os
from pathlib import Path

NEWNS, NEWUTS, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
PR_SET_PDEATHSIG = 1

# Written out because os.unshare and os.setns came with Python 3.12.
_libc = ctypes.CDLL(None, use_errno=True)


PIDFD_OPEN = 434  # the call's number on every processor but one long gone


def _call(name: str, *args: object) -> int:
    result = getattr(_libc, name)(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that the flags name, for new ones."""
    _call("unshare", flags)


def setns(fd: int) -> None:
    """Enter the namespace behind the descriptor."""
    _call("setns", fd, 0)


def sethostname(name: str) -> None:
    """Name this UTS namespace."""
    _call("sethostname", name.encode(), len(name))


def die_with_parent(signal: int) -> None:
    """Have the kernel send this process the signal when the thread that made it ends."""
    _call("prctl", PR_SET_PDEATHSIG, signal, 0, 0, 0)


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; conda's Python lacks os.pidfd_open."""
    fd = _call("syscall", PIDFD_OPEN, pid, 0)
    os.set_inheritable(fd, False)
    return fd


def mount(source: str, target: str, kind: str | None, flags: int = 0) -> None:
    """mount(2), without data."""
    _call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, None)


def isolate() -> bool:
    """New mount, UTS, network and (for children) process namespaces; whether a user namespace was needed.

    Raises:
        PermissionError: the kernel refuses, with what to do.
    """
    flags = NEWNS | NEWUTS | NEWPID | NEWNET
    uid, gid = os.geteuid(), os.getegid()
    try:
        unshare(flags)
        as_root = True
    except OSError:
        as_root = False
    try:
        if not as_root:
            unshare(NEWUSER | flags)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        # Otherwise the mounts below would spread to the whole machine.
        mount("none", "/", None, MS_REC | MS_PRIVATE)
    except OSError as error:
        raise PermissionError(refusal(error.errno or 0, uid == 0)) from error
    return not as_root


def refusal(number: int, root: bool, sysctl: Path = Path("/proc/sys")) -> str:
    """Why namespaces were refused and what helps, from the error number and the system's settings."""
    text = f"this system does not allow network namespaces ({os.strerror(number)}), which a lab is made of. "

    def reads(name: str, value: str) -> bool:
        try:
            return (sysctl / name).read_text().strip() == value
        except OSError:
            return False

    if number == errno.ENOSPC or reads("user/max_user_namespaces", "0"):
        return text + "User namespaces are limited to none: sudo sysctl user.max_user_namespaces=10000"
    if reads("kernel/unprivileged_userns_clone", "0"):
        return text + "Run it as root, or once: sudo sysctl kernel.unprivileged_userns_clone=1"
    if reads("kernel/apparmor_restrict_unprivileged_userns", "1"):
        return text + "Run it as root, or once: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    if root:
        return text + (
            "In a container, start it with --cap-add=SYS_ADMIN --cap-add=NET_ADMIN "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined (or --privileged)"
        )
    return text + "Run it as root, or ask for unprivileged user namespaces; cnnkit launch works without them"


def own_hosts(hosts: str) -> None:
    """Give this mount namespace its own /proc and /etc/hosts, leaving no file behind.

    The text lives in a memory file system that is bound to its place and then unmounted from where it was
    written, so it vanishes with the namespace.
    """
    place = "/tmp"
    mount("tmpfs", place, "tmpfs")
    try:
        Path(place, "hosts").write_text(hosts)
        mount(f"{place}/hosts", "/etc/hosts", None, MS_BIND)
        switch = Path("/etc/nsswitch.conf")
        if switch.exists():
            # A resolver daemon outside would answer from the machine's names, not the lab's.
            lines = [
                "hosts: files" if line.startswith("hosts:") else line
                for line in switch.read_text().split("\n")
            ]
            Path(place, "nsswitch").write_text("\n".join(lines))
            mount(f"{place}/nsswitch", str(switch), None, MS_BIND)
    finally:
        _call("umount2", place.encode(), MNT_DETACH)
    # Containers that mask parts of /proc forbid a fresh one; the outer one serves, with outer numbers.
    with contextlib.suppress(PermissionError):
        mount("proc", "/proc", "proc")


def members(net: int) -> set[int]:
    """The processes whose network namespace has that inode, by their numbers in the innermost process namespace."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.stat(f"/proc/{entry}/ns/net").st_ino == net:
                status = Path(f"/proc/{entry}/status").read_text()
                found.add(int(status.partition("NSpid:")[2].split("\n")[0].split()[-1]))
        except (OSError, IndexError):
            continue
    return found
