"""The lab's network: a bridge without uplink, and to each node a link shaped at both ends."""

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from cnnkit.lab import kernel

INTERFACE = "link"  # a node's end; a name that no machine has, so that NCCL finds no namesake in /sys
ROOT, NETEM, TBF = 0xFFFFFFFF, 0x10000, 0x100000


def address(node: int) -> str:
    """A node's IPv4 address, in 10.77.0.0/16."""
    return f"10.77.{(node + 1) // 256}.{(node + 1) % 256}"


def burst(rate: float) -> int:
    """Bytes that pass unshaped after a pause: a millisecond's worth, at least two frames, at most 128 kB.

    A larger bucket would let a small message through for nothing: 128 kB is 10 ms at 100 Mbit/s.
    """
    return int(min(max(rate / 8 * 1e-3, 5000), 128 * 1024))


def limit(rate: float) -> int:
    """Bytes that may wait at an end: what takes 50 ms to send, at least 32 kB, at most 1 MB.

    With more, TCP on a slow link sees its round trip grow to a second, and takes long to find the rate.
    """
    return int(min(max(rate / 8 * 0.05, 32 * 1024), 1_000_000))


@contextmanager
def needs(module: str, otherwise: str) -> Iterator[None]:
    """Turns the kernel's 'unknown kind' into what is missing and what to do."""
    try:
        yield
    except NetlinkError as error:
        if error.code not in (errno.ENOENT, errno.EOPNOTSUPP):
            raise
        raise OSError(
            errno.EOPNOTSUPP,
            f"this kernel has no {module}: sudo modprobe {module} (package linux-modules-extra or "
            f"kernel-modules-extra on some distributions), or {otherwise}",
        ) from error


@dataclass
class Node:
    """A node's namespaces, held open by descriptors alone, and sockets to both ends of its link."""

    name: str
    net: int
    uts: int
    route: IPRoute
    inner: int
    outer: int
    rate: float | None = None

    @property
    def inode(self) -> int:
        """Which network namespace it is."""
        return os.fstat(self.net).st_ino


class Links:
    """The bridge and the nodes, made in this process's own network namespace."""

    def __init__(self, count: int, rate: float | None, delay: float) -> None:
        self.delay = delay
        self.lab = IPRoute()
        self._up(self.lab, "lo")
        with needs("bridge", "use a kernel that has it"):
            self.lab.link("add", ifname="lab", kind="bridge")
        self.bridge = self._up(self.lab, "lab")
        self.nodes = [self._node(i) for i in range(count)]
        for node in range(count):
            self.shape(node, rate)

    def _node(self, i: int) -> Node:
        home = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts")]
        try:
            kernel.unshare(kernel.NEWNET | kernel.NEWUTS)
            kernel.sethostname(f"node{i}")
            net, uts = (
                os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts")
            )
            route = IPRoute()
            try:
                # Its addresses appear late and unasked; every name here stands for an IPv4 address.
                with open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w") as setting:
                    setting.write("1")
            except OSError:
                pass
        finally:
            for fd in home:
                kernel.setns(fd)
                os.close(fd)
        with needs("veth", "use a kernel that has it"):
            self.lab.link("add", ifname=f"node{i}", kind="veth", peer={"ifname": INTERFACE, "net_ns_fd": net})
        outer = self._up(self.lab, f"node{i}", master=self.bridge)
        self._up(route, "lo")
        inner = self._up(route, INTERFACE)
        route.addr("add", index=inner, address=address(i), prefixlen=16)
        return Node(f"node{i}", net, uts, route, inner, outer)

    @staticmethod
    def _up(route: IPRoute, name: str, **more: int) -> int:
        index = route.link_lookup(ifname=name)[0]
        route.link("set", index=index, state="up", **more)
        return index

    def shape(self, node: int, rate: float | None) -> None:
        """Give a node's link that rate, bits a second in each direction; None leaves it as fast as it goes."""
        at = self.nodes[node]
        # The delay stands at the node's end alone, so it is the time from any node to any other.
        for route, index, delay in ((at.route, at.inner, self.delay), (self.lab, at.outer, 0.0)):
            if delay:
                with needs("sch_netem", "leave out the delay; the rate is shaped all the same"):
                    packets = 1000 + int((rate or 1e10) * delay / 8 / 1000)
                    route.tc("replace", "netem", index, NETEM, delay=int(delay * 1e6), limit=packets)
            parent = {"parent": NETEM | 1} if delay else {}
            if rate:
                with needs("sch_tbf", "leave out the rate"):
                    shaper = {"rate": int(rate / 8), "burst": burst(rate), "limit": limit(rate)}
                    route.tc("replace", "tbf", index, TBF, **parent, **shaper)
            elif at.rate:
                route.tc("del", None, index, TBF, **(parent or {"parent": ROOT}))
        with contextlib.suppress(NetlinkError):
            largest = min(65536, int(0.85 * burst(rate))) if rate else 65536
            at.route.link("set", index=at.inner, gso_max_size=largest)
        at.rate = rate

    def plug(self, node: int, state: str) -> None:
        """Pull a node's cable ("down") or put it back ("up")."""
        self.lab.link("set", index=self.nodes[node].outer, state=state)

    def shapers(self, node: int) -> dict[str, list[dict[str, Any]]]:
        """What the kernel says is at the node's end and at the bridge's: kinds, and rates in bits a second."""
        at = self.nodes[node]
        found: dict[str, list[dict[str, Any]]] = {}
        for end, route, index in (("node", at.route, at.inner), ("bridge", self.lab, at.outer)):
            found[end] = []
            for qdisc in route.get_qdiscs(index=index):
                kind, options = qdisc.get_attr("TCA_KIND"), qdisc.get_attr("TCA_OPTIONS")
                if kind == "tbf":
                    found[end].append({"kind": kind, "rate": 8.0 * options.get_attr("TCA_TBF_PARMS")["rate"]})
                elif kind == "netem":
                    found[end].append({"kind": kind})
        return found
