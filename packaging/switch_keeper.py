"""Keeps weft under the name of ovs-vswitchd, for system tests of OVN and Open vSwitch.

The tests start ovs-vswitchd, query it with ovs-appctl, look for warnings in its log, and tell it to
exit. A keeper is a process that starts weft, writes weft's log in the format of Open vSwitch, and
responds to ovs-appctl.

The environment variable WEFT is the program, WEFT_ARGUMENTS are additional arguments of `weft run`.
"""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

# How long weft may take to respond, in seconds.
PATIENCE_S = 25
# How long a client may take to send its request, in seconds.
CALL_S = 2
RUNDIR = os.environ["OVS_RUNDIR"]
LOGDIR = os.environ.get("OVS_LOGDIR", RUNDIR)
KEEPER = os.path.join(RUNDIR, "weft-keeper.pid")
# weft's control socket.
CONTROL = os.path.join(RUNDIR, "weft.sock")


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
    # Written under another name first, so that nobody reads an incomplete file.
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
    """Writes weft's log in the format of Open vSwitch, because tests look for warnings in it."""
    form = re.compile(rb"(\S+Z)\s+(ERROR|WARN|INFO|DEBUG|TRACE)\s+(.*)", re.DOTALL)
    # ovn-controller does not log backends that are offline.
    quiet = b"id=backend-offline"
    levels = {b"ERROR": b"ERR", b"DEBUG": b"DBG", b"TRACE": b"DBG"}
    for number, line in enumerate(source, 1):
        found = form.match(line)
        if found and b" id=acl-record" in found[3]:
            # The format of ovn-controller's module `acl_log`.
            text = found[3].split(b" id=")[0]
            line = b"%s|%05d|acl_log(ovn_pinctrl0)|INFO|%s\n" % (found[1], number, text)
        elif found:
            level = b"INFO" if quiet in found[3] else levels.get(found[2], found[2])
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


class Refused(Exception):
    """The reason why a call of ovs-appctl fails."""


class Keeper:
    """Subclasses define how weft is started, the replies to calls, and the work between calls."""

    # The programs to whose logs weft's log is copied. The first log also contains the keeper's
    # messages.
    logs = ["ovs-vswitchd"]
    # The datapath features that ovs-vswitchd logs. Tests look for them, and are skipped if they are
    # missing.
    abilities = []
    # True if weft itself writes the pid file of ovs-vswitchd while it runs.
    weft_has_pid_file = False

    def __init__(self):
        self.weft = None
        self.must_start = True
        self.must_exit = False
        self.own_pid_file = None
        self.log_files = [Log(name) for name in self.logs]

    def arguments(self):
        """The arguments of `weft run`."""
        raise NotImplementedError

    def reply(self, method, arguments):
        """The reply to a call. Raises Refused."""
        raise Refused(f"{method}: weft does not run")

    def turn(self):
        """Work between calls; this method is called many times per second."""

    def say(self, line):
        self.log_files[0].write(line.encode() + b"\n")

    def start_weft(self):
        for ability in self.abilities:
            self.say("keeper|INFO|weft: " + ability)
        words = [os.environ["WEFT"], "run", "--control", CONTROL, *self.arguments()]
        words += os.environ.get("WEFT_ARGUMENTS", "").split()
        self.weft = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        copy = threading.Thread(
            target=copy_log, args=(self.weft.stderr, self.log_files), daemon=True
        )
        copy.start()

    def answer(self, client):
        client.settimeout(CALL_S)
        text = b""
        while b"}" not in text:
            received = client.recv(4096)
            if not received:
                return
            text += received
        call = json.loads(text)
        answer = {"id": call["id"], "result": "", "error": None}
        if call["method"] == "exit":
            self.must_exit = True
        else:
            try:
                answer["result"] = self.reply(call["method"], call.get("params", []))
            except Refused as refused:
                answer.update(result=None, error=f"{refused}\n")
        client.sendall(json.dumps(answer).encode())

    def run(self):
        path = os.path.join(RUNDIR, f"ovs-vswitchd.{os.getpid()}.ctl")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.settimeout(0.05)
        self.own_pid_file = write_pid(pid_file("ovs-vswitchd"))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "must_start", True))
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "must_exit", True))
        keeper_file = write_pid(KEEPER)
        while not self.must_exit:
            if self.weft and self.weft.poll() is not None:
                self.say("the keeper: weft ended with %d" % self.weft.returncode)
                self.weft = None
                if self.weft_has_pid_file:
                    self.own_pid_file = write_pid(pid_file("ovs-vswitchd"))
            if self.must_start and not self.weft:
                if self.weft_has_pid_file:
                    self.own_pid_file.close()
                self.start_weft()
            self.must_start = False
            self.turn()
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


def detach(is_ready):
    """Continues in a child process. The parent exits when `is_ready(pid)` returns true."""
    keeper = os.fork()
    if keeper:
        os._exit(0 if within(PATIENCE_S, lambda: is_ready(keeper)) else 1)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, 256)
