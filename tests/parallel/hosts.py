"""Several hosts on one machine: network namespaces that a bridge joins, each with a name, processes and shared memory.

    unshare -nmp --fork --kill-child python tests/parallel/hosts.py HOSTS 'TC ARGUMENTS' mpirun ...

runs the command on a host h0, from which h1, h2, … can be reached (one who is not root needs -Ur, too). The second
argument shapes every link (``netem delay 1ms rate 1gbit``; may be empty). A line ``cut h2`` among the errors of the
command takes that host off the network. ENTER names a script that does what ssh would do. All is gone when the command
has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """\
#!/bin/sh
[ "$1" = -x ] && shift
name=$1
shift
exec nsenter --net=/run/netns/$name unshare -umip --fork --kill-child --mount-proc sh -c '
    hostname "$0" && mount -t tmpfs none /dev/shm && TMPDIR=/dev/shm eval "$*"' "$name" "$@"
"""


def call(command: str) -> None:
    done = subprocess.run(command.split(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr.strip()}")


def build(hosts: int, shape: str, directory: Path) -> None:
    names = directory / "names"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{100 + i} h{i}\n" for i in range(hosts + 1)))
    call(f"mount --bind {names} /etc/hosts")
    call("mount -t tmpfs none /run")
    Path("/run/netns").mkdir()
    call("ip link set lo up")
    call("ip link add bridge type bridge")
    call("ip link set bridge up")
    call("ip addr add 10.77.0.100/24 dev bridge")
    for i in range(1, hosts + 1):
        call(f"ip netns add h{i}")
        call(f"ip link add link{i} type veth peer name eth0 netns h{i}")
        call(f"ip link set link{i} master bridge up")
        call(f"ip -n h{i} addr add 10.77.0.{100 + i}/24 dev eth0")
        call(f"ip -n h{i} link set eth0 up")
        call(f"ip -n h{i} link set lo up")
        if shape:
            call(f"tc qdisc add dev link{i} root {shape}")
            call(f"tc -n h{i} qdisc add dev eth0 root {shape}")


def main(hosts: int, shape: str, command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as directory:
        build(hosts, shape, Path(directory))
        enter = Path(directory) / "enter"
        enter.write_text(SCRIPT)
        enter.chmod(0o755)
        os.environ["TMPDIR"] = directory  # launchers name files there by their process number, which is 20 in each try
        command = [word.replace("ENTER", str(enter)) for word in command]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
            assert job.stderr is not None
            for line in job.stderr:
                sys.stderr.write(line)
                sys.stderr.flush()
                if line.startswith("cut h"):
                    call(f"ip link set link{line[5:].strip()} down")
        return job.returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
