#!/usr/bin/python3
"""Runs weft under the names of ovs-vswitchd and ovn-controller, for `cargo xtask ovn-system-tests`.

OVN's system tests start both programs, and stop ovn-controller before ovs-vswitchd. weft is both in
one process. Called as `ovs-vswitchd`, this script starts weft and stays as its keeper. The keeper
responds as ovs-vswitchd only while weft does not run: before weft listens, and after ovn-controller
was told to exit. Called as `ovn-controller`, the script waits until weft responds under that name.
If weft has exited, the keeper starts it again. A process with that name runs as long as weft, because
tests end ovn-controller by its name. This process then ends weft.
"""

import os
import signal
import subprocess
import sys
import time

from switch_keeper import KEEPER, PATIENCE_S, RUNDIR, Keeper, detach, pid_file, read_pid, within


class ChassisKeeper(Keeper):
    logs = ["ovs-vswitchd", "ovn-controller"]
    abilities = ["Datapath supports ct_clear action", "Datapath supports ct_zero_snat"]
    weft_has_pid_file = True

    def arguments(self):
        return ["--ovn", f"unix:{RUNDIR}/db.sock"]


def stay(name):
    """Waits until weft ends. SIGTERM ends weft as it would end ovn-controller."""
    weft = read_pid(pid_file(name))

    def end(*_):
        subprocess.run(["ovn-appctl", "-t", name, "exit", "--restart"], check=False)

    signal.signal(signal.SIGTERM, end)
    while weft is not None and read_pid(pid_file(name)) == weft:
        time.sleep(0.1)
    return 0


def main():
    name = os.path.basename(sys.argv[0])
    if name == "ovs-vswitchd":
        detach(lambda keeper: read_pid(KEEPER) == keeper)
        ChassisKeeper().run()
        return 0
    keeper = read_pid(KEEPER)
    if name != "ovn-controller" or keeper is None:
        print(f"{name}: ovs-vswitchd does not run", file=sys.stderr)
        return 1
    if sys.argv[1:] == ["--stay"]:
        return stay(name)
    os.kill(keeper, signal.SIGUSR1)
    if within(PATIENCE_S, lambda: read_pid(pid_file(name)) is not None):
        null = subprocess.DEVNULL
        words = [name, os.path.abspath(sys.argv[0]), "--stay"]
        subprocess.Popen(
            words, executable=sys.executable, stdin=null, stdout=null, stderr=null,
            start_new_session=True,
        )
        return 0
    print(f"{name}: weft does not answer; see ovs-vswitchd.log", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
