#!/usr/bin/python3
"""weft under the names of ovs-vswitchd and ovn-controller, for `cargo xtask ovn-system-tests`.

OVN's system tests start both programs, and stop ovn-controller before ovs-vswitchd. weft is both in
one process. Called as `ovs-vswitchd`, this script starts weft and stays as its keeper. The keeper
answers as ovs-vswitchd only while weft does not run: before it listens, and after ovn-controller was
told to exit. Called as `ovn-controller`, the script waits until weft answers under that name. If
weft has exited, the keeper starts it again. A process with that name stays while weft runs, because
tests end ovn-controller by its name: it ends weft.

WEFT is the program, WEFT_ARGUMENTS are further arguments of `weft run`.
"""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

# How long weft may take until it answers, in seconds.
PATIENCE_S = 25
RUNDIR = os.environ["OVS_RUNDIR"]
LOGDIR = os.environ.get("OVS_LOGDIR", RUNDIR)
KEEPER = os.path.join(RUNDIR, "weft-keeper.pid")


def pid_file(name):
    return os.path.join(RUNDIR, name + ".pid")


def read_pid(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def write_pid(path):
    """Returns the file, locked: tools ignore a file without a lock."""
    # Under another name first, so that nobody reads a half of it.
    file = open(path + ".new", "w", encoding="ascii")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(os.getpid(), file=file, flush=True)
    os.rename(path + ".new", path)
    return file


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def copy_log(source, logs):
    """Writes weft's log in the form of Open vSwitch, whose warnings the tests look for."""
    form = re.compile(rb"(\S+Z)\s+(ERROR|WARN|INFO|DEBUG|TRACE)\s+(.*)", re.DOTALL)
    levels = {b"ERROR": b"ERR", b"DEBUG": b"DBG", b"TRACE": b"DBG"}
    for number, line in enumerate(source, 1):
        found = form.match(line)
        if found:
            level = levels.get(found[2], found[2])
            line = b"%s|%05d|weft|%s|%s" % (found[1], number, level, found[3])
        for log in logs:
            log.write(line)


class Log:
    """The log file of a program. Tests remove it while it is in use."""

    def __init__(self, name):
        self.path = os.path.join(LOGDIR, name + ".log")

    def write(self, line):
        with open(self.path, "ab") as file:
            file.write(line)


class Keeper:
    def __init__(self):
        self.weft = None
        self.must_start = True
        self.must_exit = False
        self.logs = [Log("ovs-vswitchd"), Log("ovn-controller")]

    def start_weft(self):
        # What ovs-vswitchd says about a datapath. Tests look for it, and are skipped otherwise.
        for ability in [b"ct_clear action"]:
            self.logs[0].write(b"keeper|INFO|weft: Datapath supports %s\n" % ability)
        words = [os.environ["WEFT"], "run", "--ovn", f"unix:{RUNDIR}/db.sock"]
        words += ["--control", os.path.join(RUNDIR, "weft.sock")]
        words += os.environ.get("WEFT_ARGUMENTS", "").split()
        self.weft = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        copy = threading.Thread(target=copy_log, args=(self.weft.stderr, self.logs), daemon=True)
        copy.start()

    def answer(self, client):
        client.settimeout(2)
        text = b""
        while b"}" not in text:
            received = client.recv(4096)
            if not received:
                return
            text += received
        call = json.loads(text)
        reply = {"id": call["id"], "result": "", "error": None}
        if call["method"] == "exit":
            self.must_exit = True
        else:
            reply.update(result=None, error="weft does not run\n")
        client.sendall(json.dumps(reply).encode())

    def run(self):
        path = os.path.join(RUNDIR, f"ovs-vswitchd.{os.getpid()}.ctl")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.settimeout(0.05)
        own_pid_file = write_pid(pid_file("ovs-vswitchd"))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "must_start", True))
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "must_exit", True))
        keeper_file = write_pid(KEEPER)
        while not self.must_exit:
            if self.weft and self.weft.poll() is not None:
                self.logs[0].write(b"the keeper: weft ended with %d\n" % self.weft.returncode)
                self.weft = None
                own_pid_file = write_pid(pid_file("ovs-vswitchd"))
            if self.must_start and not self.weft:
                # weft takes the file over.
                own_pid_file.close()
                self.start_weft()
            self.must_start = False
            try:
                self.answer(listener.accept()[0])
            except (TimeoutError, ValueError, KeyError, OSError):
                pass
        if self.weft:
            self.weft.terminate()
            self.weft.wait(PATIENCE_S)
        keeper_file.close()
        for own in [path, pid_file("ovs-vswitchd"), KEEPER]:
            if os.path.exists(own):
                os.remove(own)


def detach():
    """Continues in a process of its own. The parent ends when the keeper can be reached."""
    keeper = os.fork()
    if keeper:
        is_ready = within(PATIENCE_S, lambda: read_pid(KEEPER) == keeper)
        os._exit(0 if is_ready else 1)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, 256)


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
        detach()
        Keeper().run()
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
