//! Tests that the terminal is restored when a program has ended.

use netdev::epoll::Waker;
use netdev::terminal::Terminal;
use nix::pty::openpty;
use nix::sys::termios::{LocalFlags, tcgetattr};
use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::time::Duration;

/// Set in the process that takes the terminal.
const CHILD: &str = "WEFT_TEST_TERMINAL_CHILD";

/// Takes the terminal and ends by a panic. Not a test of its own.
#[test]
fn take_and_panic_in_a_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let waker = Waker::new().unwrap();
    let mut terminal = Terminal::take(&waker).unwrap();
    let mode = tcgetattr(std::io::stdin()).unwrap().local_flags;
    assert!(!mode.contains(LocalFlags::ICANON) && !mode.contains(LocalFlags::ECHO));
    waker.wake();
    let events = terminal.wait(&mut [0; 8], &waker, Duration::from_secs(5)).unwrap();
    assert!(events.is_woken && !events.is_ended);
    // A release build aborts at the end of a panic, without dropping anything.
    std::mem::forget(terminal);
    panic!("this panic is wanted");
}

#[test]
fn terminal_is_restored_when_the_program_panics() {
    let pty = openpty(None, None).unwrap();
    let before = tcgetattr(&pty.slave).unwrap();
    let end = || pty.slave.try_clone().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["terminal::take_and_panic_in_a_child", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    let mut reader = File::from(pty.master.try_clone().unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut buffer = [0; 1024];
        // Reading fails when no program has the terminal any more.
        while let Ok(read) = reader.read(&mut buffer)
            && read != 0
        {
            text.extend_from_slice(&buffer[..read]);
        }
        let _ = sender.send(text);
    });
    let status = child.wait().unwrap();
    assert_eq!(tcgetattr(&pty.slave).unwrap(), before);
    drop(pty.slave);
    let text = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(!status.success(), "{text}");
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what:?} is not in {text:?}"));
    // The message must be on the screen that stays.
    assert!(at("\u{1b}[?1049h") < at("\u{1b}[?1049l"), "{text}");
    assert!(at("\u{1b}[?1049l") < at("this panic is wanted"), "{text}");
}

#[test]
fn files_and_pipes_are_refused() {
    // The standard input of tests may be a terminal, but their standard output is a pipe.
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["terminal::take_and_panic_in_a_child", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(text.contains("not both terminals") && !text.contains("wanted"), "{text}");
}
