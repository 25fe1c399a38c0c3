//! [`Terminal`]: the terminal of a program that fills the screen. It takes keys one by one and
//! restores everything when the program ends, also by a panic.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{self, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{self, SetArg, Termios};

use crate::epoll::{Epoll, EpollEvents, Waker};
use crate::{Error, Result};

/// The settings that the terminal had; `None` while it has them.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Takes the alternate screen, hides the cursor and does not wrap lines.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
/// Undoes [`ENTER`] and all colours.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

const INPUT: u64 = 0;
const SIGNAL: u64 = 1;
const WOKEN: u64 = 2;

/// The events that [`Terminal::wait`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TerminalEvents {
    /// How many bytes have been read from the keyboard.
    pub input: usize,
    /// The size of the terminal has changed.
    pub is_resized: bool,
    /// Another thread has called [`Waker::wake`].
    pub is_woken: bool,
    /// The program must end: it has received a signal, or the terminal is gone.
    pub is_ended: bool,
}

/// The terminal behind standard input and output, in raw mode.
#[derive(Debug)]
pub struct Terminal {
    epoll: Epoll,
    events: EpollEvents,
    signals: SignalFd,
}

impl Terminal {
    /// Takes the terminal. Blocks SIGTERM, SIGINT, SIGHUP, SIGQUIT and SIGWINCH, which
    /// [`Terminal::wait`] reports: call it before other threads start. `waker` ends a wait from
    /// another thread.
    ///
    /// # Errors
    /// Standard input or output is not a terminal, or the kernel refuses.
    pub fn take(waker: &Waker) -> Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(Error::Invalid {
                what: "take the terminal".into(),
                reason: "standard input and output are not both terminals".into(),
            });
        }
        let set = SigSet::from_iter([
            signal::SIGTERM,
            signal::SIGINT,
            signal::SIGHUP,
            signal::SIGQUIT,
            signal::SIGWINCH,
        ]);
        set.thread_block().map_err(|e| Error::os("block signals", e))?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map_err(|e| Error::os("create a signalfd", e))?;
        let epoll = Epoll::new()?;
        epoll.add(io::stdin().as_fd(), INPUT)?;
        epoll.add(signals.as_fd(), SIGNAL)?;
        epoll.add(waker, WOKEN)?;
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        enter()?;
        Ok(Self { epoll, events: EpollEvents::new(), signals })
    }

    /// Waits for keys, signals and the waker, for at most `timeout`. Bytes from the keyboard are
    /// stored at the beginning of `buffer`.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn wait(
        &mut self,
        buffer: &mut [u8],
        waker: &Waker,
        timeout: Duration,
    ) -> Result<TerminalEvents> {
        self.epoll.wait(&mut self.events, Some(timeout))?;
        let mut found = TerminalEvents::default();
        for token in self.events.tokens() {
            match token {
                // Not through the buffer of the standard library: epoll does not see bytes that
                // wait in it.
                INPUT => match nix::unistd::read(io::stdin().as_fd(), buffer) {
                    Ok(0) => found.is_ended = true,
                    Ok(read) => found.input = read,
                    Err(Errno::EINTR | Errno::EAGAIN) => {}
                    Err(_) => found.is_ended = true,
                },
                SIGNAL => {
                    while let Ok(Some(info)) = self.signals.read_signal() {
                        match info.ssi_signo as i32 {
                            libc::SIGWINCH => found.is_resized = true,
                            _ => found.is_ended = true,
                        }
                    }
                }
                _ => found.is_woken |= waker.clear(),
            }
        }
        Ok(found)
    }

    /// The width and height in characters: 80 and 24 if the terminal does not report them.
    pub fn size(&self) -> (usize, usize) {
        let size = crate::sys::window_size(io::stdout().as_fd());
        let (columns, rows) = size.unwrap_or_default();
        if columns == 0 || rows == 0 {
            return (80, 24);
        }
        (columns.into(), rows.into())
    }

    /// Restores the terminal and stops the process, as Ctrl-Z does. Takes the terminal again when
    /// the process continues.
    ///
    /// # Errors
    /// The terminal cannot be taken again.
    pub fn suspend(&self) -> Result<()> {
        restore();
        signal::raise(Signal::SIGTSTP).map_err(|e| Error::os("stop the process", e))?;
        enter()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Saves the settings of the terminal and changes them.
fn enter() -> Result<()> {
    let os = |what: &'static str| move |error| Error::os(what, error);
    let before = termios::tcgetattr(io::stdin()).map_err(os("read the terminal's settings"))?;
    let mut raw = before.clone();
    termios::cfmakeraw(&mut raw);
    *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
    let result = termios::tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &raw);
    result.map_err(os("change the terminal's settings"))?;
    let mut out = io::stdout();
    let written = out.write_all(ENTER).and_then(|()| out.flush());
    if written.is_err() {
        restore();
    }
    written.map_err(|error| Error::Os { what: "write to the terminal".into(), source: error })
}

/// Restores what [`Terminal::take`] has changed, once. It fails silently: the terminal may have
/// gone.
fn restore() {
    let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(saved) = saved else { return };
    // Standard output may be locked by the thread that panics, so this writes to its descriptor.
    let _ = nix::unistd::write(io::stdout().as_fd(), LEAVE);
    let _ = termios::tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &saved);
}
