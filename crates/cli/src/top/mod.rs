//! `weft top`: the rates of a running switch, live.

mod keys;
mod sample;
mod view;

use crate::control::{DaemonSelector, Request, request};
use crate::{Failure, one_line, stdio};
use anyhow::{Context, anyhow};
use datapath::stats::Snapshot;
use netdev::epoll::Waker;
use netdev::terminal::Terminal;
use sample::{Reading, Sample};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use view::{Column, KeyAction, Line, Style, View};

/// Watch the rates of a running switch: packets, bits and drops per second of each port.
///
/// The first lines show the processor time of the daemon, megaflows, connections, and upcalls:
/// packets that had no megaflow and waited for a decision. The table has the ports and the uplink,
/// whose traffic is that of all tunnels without outer headers.
///
/// Keys: q quits, s and the arrows left and right choose the column that the table is sorted by,
/// r reverses the order, the arrows up and down scroll, p pauses, t shows tunnels, ? shows all
/// keys.
///
/// It asks the daemon once an interval, as `weft ports` does. When the daemon ends, it says so and
/// retries. RX is traffic from the guest, TX to it; a super-packet is one packet.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Seconds between two samples, 0.2 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Sort by this column of the table; with ports, `rx` is from the guest
    #[arg(long, value_enum, default_value_t)]
    sort: Column,
    /// Print one sample as text and exit
    #[arg(long)]
    once: bool,
    /// Print one sample as a JSON object and exit
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft top --host h1
  weft top --host h1 --interval 5 --sort drops
  weft top --host h1 --once
  weft top --host h1 --json | jq '.ports[] | select(.drops > 0)'

Exit codes: 0 success, 1 no daemon replies, 2 bad usage or no terminal.";

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.2..=3600.0).contains(&seconds) {
        return Err("must be 0.2 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

pub fn top(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    if args.once || args.json {
        let sample = one_sample(&path, args.interval)?;
        return if args.json {
            stdio::print_json(&sample)
        } else {
            stdio::print(&view::text(&sample, args.sort))
        };
    }
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !is_terminal || std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
        return Err(Failure::Input(anyhow!(
            "cannot show a live table: standard input and output are not a terminal that moves \
             the cursor; use --once or --json"
        )));
    }
    // Fails if the daemon does not reply to the first request. Later failures are retried.
    let first = read(&path)?;
    watch(args, path, first)
}

/// Requests the counters of the daemon, as `weft ports` does.
fn read(path: &PathBuf) -> Result<Reading, Failure> {
    request::<Snapshot>(path, &Request::Show).map(Reading::new)
}

/// The rates within one interval.
fn one_sample(path: &PathBuf, interval: Duration) -> Result<Sample, Failure> {
    let before = read(path)?;
    std::thread::sleep(interval);
    let now = read(path)?;
    Ok(Sample::between(&before, &now).context(
        "cannot measure rates: the daemon was restarted in the meantime; repeat the command",
    )?)
}

/// A thread that sends the requests, so that keys work even if the daemon does not reply.
struct Requester {
    requests: SyncSender<()>,
    replies: Receiver<Result<Reading, String>>,
}

impl Requester {
    fn start(path: PathBuf, waker: Arc<Waker>) -> io::Result<Self> {
        let (requests, requested) = sync_channel(1);
        let (sender, replies) = sync_channel(1);
        std::thread::Builder::new().name("requester".to_owned()).spawn(move || {
            for () in requested {
                let reply = read(&path).map_err(|failure| match failure {
                    Failure::Runtime(error) | Failure::Input(error) => one_line(&error),
                    Failure::Findings(_) | Failure::OutputClosed => String::new(),
                });
                if sender.send(reply).is_err() {
                    return;
                }
                waker.wake();
            }
        })?;
        Ok(Self { requests, replies })
    }
}

/// Shows the table until the user quits.
fn watch(args: &Args, path: PathBuf, first: Reading) -> Result<(), Failure> {
    let waker = Arc::new(Waker::new()?);
    // Blocks the signals before the other thread starts: it must not receive them.
    let mut terminal = Terminal::take(&waker)?;
    let requester = Requester::start(path, Arc::clone(&waker)).context("cannot start a thread")?;
    let result = Watch {
        view: View::new(args.interval, args.sort),
        requester,
        reading: first,
        received: Instant::now(),
        last_request: Some(Instant::now()),
        interval: args.interval,
        is_waiting: false,
        colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
    .run(&mut terminal, &waker);
    // Restores the terminal before an error is printed.
    drop(terminal);
    result
}

/// The state of the loop.
struct Watch {
    view: View,
    requester: Requester,
    /// The last reading, and when it arrived.
    reading: Reading,
    received: Instant,
    /// When the last request was sent.
    last_request: Option<Instant>,
    interval: Duration,
    /// A reply is outstanding.
    is_waiting: bool,
    colours: bool,
}

impl Watch {
    fn run(mut self, terminal: &mut Terminal, waker: &Waker) -> Result<(), Failure> {
        let mut buffer = [0; 256];
        loop {
            self.send_request();
            self.draw(terminal)?;
            let events = terminal.wait(&mut buffer, waker, self.until_next())?;
            if events.is_ended {
                return Ok(());
            }
            for key in keys::decode(buffer.get(..events.input).unwrap_or_default()) {
                match self.view.press(key) {
                    KeyAction::None => {}
                    KeyAction::Quit => return Ok(()),
                    KeyAction::Suspend => terminal.suspend()?,
                }
            }
            self.take_reply();
        }
    }

    /// Sends a request if an interval has passed since the last one.
    fn send_request(&mut self) {
        let is_due =
            self.last_request.is_none_or(|last_request| last_request.elapsed() >= self.interval);
        if self.view.is_paused || self.is_waiting || !is_due {
            return;
        }
        match self.requester.requests.try_send(()) {
            Ok(()) => (self.last_request, self.is_waiting) = (Some(Instant::now()), true),
            Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }

    /// How long to wait for keys: until the next request is due, but at most a second, because the
    /// screen shows the age of old data in seconds.
    fn until_next(&self) -> Duration {
        const SECOND: Duration = Duration::from_secs(1);
        if self.view.is_paused || self.is_waiting {
            return SECOND;
        }
        let passed = self.last_request.map_or(self.interval, |last_request| last_request.elapsed());
        self.interval.saturating_sub(passed).min(SECOND)
    }

    fn take_reply(&mut self) {
        let late = self.interval * 2 + Duration::from_secs(1);
        match self.requester.replies.try_recv() {
            Ok(Ok(reading)) => {
                self.is_waiting = false;
                if let Some(sample) = Sample::between(&self.reading, &reading) {
                    self.view.sample = Some(sample);
                }
                (self.reading, self.received) = (reading, Instant::now());
                self.view.failure = None;
            }
            Ok(Err(error)) => {
                self.is_waiting = false;
                self.view.failure = Some((error, self.received.elapsed()));
            }
            Err(TryRecvError::Empty) if self.is_waiting && self.received.elapsed() > late => {
                let why = match self.view.failure.take() {
                    Some((why, _)) => why,
                    None => "the daemon does not answer".to_owned(),
                };
                self.view.failure = Some((why, self.received.elapsed()));
            }
            Err(TryRecvError::Empty) => {
                if let Some((_, since)) = &mut self.view.failure {
                    *since = self.received.elapsed();
                }
            }
            Err(TryRecvError::Disconnected) => {
                let why = "the thread that asks the daemon has ended".to_owned();
                self.view.failure = Some((why, self.received.elapsed()));
            }
        }
    }

    fn draw(&mut self, terminal: &Terminal) -> Result<(), Failure> {
        let (width, height) = terminal.size();
        let text = screen(&self.view.lines(width, height), self.colours);
        let mut out = io::stdout().lock();
        stdio::check_write(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }
}

/// The terminal output that draws lines from the top left corner and overwrites the screen.
fn screen(lines: &[Line], colours: bool) -> String {
    let mut text = "\x1b[H".to_owned();
    for (number, line) in lines.iter().enumerate() {
        if number != 0 {
            text.push_str("\r\n");
        }
        for (style, part) in line {
            let code = match style {
                Style::Plain => "",
                Style::Bold => "1",
                Style::Reverse => "7",
                Style::Sorted => "7;1;4",
                Style::Dim => "2",
                Style::Good | Style::Warning | Style::Bad if !colours => "1",
                Style::Good => "32",
                Style::Warning => "33",
                Style::Bad => "31;1",
            };
            // Writing to a String cannot fail.
            let _ = match code {
                "" => write!(text, "{part}"),
                code => write!(text, "\x1b[{code}m{part}\x1b[0m"),
            };
        }
        text.push_str("\x1b[K");
    }
    text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_limited() {
        assert_eq!(interval("0.2"), Ok(Duration::from_millis(200)));
        for wrong in ["0.1", "0", "-1", "3601", "NaN", "inf", "x", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn screen_has_colours_unless_they_are_not_wanted() {
        let lines = [vec![(Style::Plain, "a ".to_owned()), (Style::Good, "up".to_owned())], vec![]];
        assert_eq!(screen(&lines, true), "\x1b[Ha \x1b[32mup\x1b[0m\x1b[K\r\n\x1b[K\x1b[J");
        assert!(!screen(&lines, false).contains("32m"));
    }
}
