#!/usr/bin/python3
"""weft under the names of ovs-vswitchd and ovn-controller, for `cargo xtask ovn-system-tests`.

OVN's system tests start both programs, and stop ovn-controller before ovs-vswitchd. weft is both in
one process. Called as `ovs-vswitchd`, this script starts weft and stays as its keeper. The keeper
answers as ovs-vswitchd only while weft does not run: before it listens, and after ovn-controller was
told to exit. Called as `ovn-controller`, the script waits until weft answers under that name. If
weft has exited, the keeper starts it again.

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


def copy_log(source, log):
    """Writes weft's log in the form of Open vSwitch, whose warnings the tests look for."""
    form = re.compile(rb"(\S+Z)\s+(ERROR|WARN|INFO|DEBUG|TRACE)\s+(.*)", re.DOTALL)
    levels = {b"ERROR": b"ERR", b"DEBUG": b"DBG", b"TRACE": b"DBG"}
    for number, line in enumerate(source, 1):
        found = form.match(line)
        if found:
            level = levels.get(found[2], found[2])
            line = b"%s|%05d|weft|%s|%s" % (found[1], number, level, found[3])
        log.write(line)
        log.flush()


class Keeper:
    def __init__(self):
        self.weft = None
        self.must_start = True
        self.must_exit = False
        self.log = open(os.path.join(LOGDIR, "ovs-vswitchd.log"), "ab")

    def start_weft(self):
        words = [os.environ["WEFT"], "run", "--ovn", f"unix:{RUNDIR}/db.sock"]
        words += ["--control", os.path.join(RUNDIR, "weft.sock")]
        words += os.environ.get("WEFT_ARGUMENTS", "").split()
        self.weft = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        copy = threading.Thread(target=copy_log, args=(self.weft.stderr, self.log), daemon=True)
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
                self.log.write(b"the keeper: weft has ended with %d\n" % self.weft.returncode)
                self.log.flush()
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
    os.kill(keeper, signal.SIGUSR1)
    if within(PATIENCE_S, lambda: read_pid(pid_file(name)) is not None):
        return 0
    print(f"{name}: weft does not answer; see ovs-vswitchd.log", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
