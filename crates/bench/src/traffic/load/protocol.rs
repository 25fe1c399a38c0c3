//! The protocol between client and server: the client sends a request line, the server responds
//! with one line, the client sends a line that starts the traffic.
//!
//! ```text
//!   client: weft-bench 2 tcp_rr 1024 0   pattern, message bytes, bit/s of the server (0: no limit)
//!   server: ok 0                         traffic is on this connection
//!   server: ok 40123                     traffic is on this port; this connection stays open
//!   server: error no such pattern
//!   client: go                           all connections are established
//! ```
//!
//! If the request is `counters` instead of a pattern, the server responds to every further line
//! with its counters.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::pattern::{Load, Pattern};
use crate::{Error, Result};

/// The first words of every request, with the version of the protocol.
const GREETING: &str = "weft-bench 2";
/// The line that starts the traffic.
pub(super) const GO: &str = "go\n";
/// The longest line, in bytes.
const LINE_MAX: usize = 200;
/// How long the peer may take to send a line.
pub(super) const LINE_LIMIT: Duration = Duration::from_secs(5);

/// The request of a client.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Request {
    /// Start the traffic of one instance (one connection).
    Traffic { pattern: Pattern, size_bytes: usize, rate_bps: f64 },
    /// Report the server's counters.
    Counters,
}

impl Request {
    pub(super) fn line(self) -> String {
        match self {
            Self::Traffic { pattern, size_bytes, rate_bps } => {
                format!("{GREETING} {pattern} {size_bytes} {rate_bps:.0}\n")
            }
            Self::Counters => format!("{GREETING} counters\n"),
        }
    }

    pub(super) fn parse(line: &str) -> Result<Self> {
        let words = line.strip_prefix(GREETING).ok_or_else(|| {
            Error::Other(format!(
                "unknown client: expected a request that begins with {GREETING:?}"
            ))
        })?;
        let mut words = words.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        if name == "counters" {
            return Ok(Self::Counters);
        }
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok());
        let pattern = name.parse()?;
        let (Some(size), Some(rate)) = (number(words.next()), words.next()) else {
            return Err(Error::Other("a pattern needs a size and a rate".into()));
        };
        let rate_bps = rate.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0);
        let load = Load::new(pattern, size as usize, 1)?;
        let rate_bps = rate_bps.ok_or_else(|| {
            Error::Other(format!("invalid rate {rate:?}: expected bits per second"))
        })?;
        Ok(Self::Traffic { pattern, size_bytes: load.size_bytes(), rate_bps })
    }
}

/// Sends `request`. Returns the port of the traffic, or 0 for this connection.
pub(super) fn ask(stream: &TcpStream, request: Request) -> Result<u16> {
    send(stream, &request.line())?;
    let line = read_line(stream)?;
    match line.split_once(' ') {
        Some(("ok", port)) => port
            .parse()
            .map_err(|_| Error::Other(format!("unexpected response {line:?} of the server"))),
        Some(("error", why)) => {
            Err(Error::Other(format!("the server refused the connection: {why}")))
        }
        _ => Err(Error::Other(format!(
            "unexpected response {line:?} of the server: is it weft bench serve?"
        ))),
    }
}

pub(super) fn send(mut stream: &TcpStream, line: &str) -> Result<()> {
    stream.set_write_timeout(Some(LINE_LIMIT)).map_err(Error::io("set a timeout"))?;
    stream.write_all(line.as_bytes()).map_err(Error::io("write to the other side"))
}

/// Reads a line without its line end, byte by byte, so that no byte of the following traffic is
/// consumed.
pub(super) fn read_line(mut stream: &TcpStream) -> Result<String> {
    let deadline = Instant::now() + LINE_LIMIT;
    stream.set_read_timeout(Some(LINE_LIMIT)).map_err(Error::io("set a timeout"))?;
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(0) => return Err(Error::Other("the peer closed the connection".into())),
            Ok(_) if byte == *b"\n" => break,
            Ok(_) => line.extend_from_slice(&byte),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("read from the other side")(e)),
        }
        if line.len() > LINE_MAX || Instant::now() >= deadline {
            return Err(Error::Other("the peer sent no complete line within 5 s".into()));
        }
    }
    String::from_utf8(line)
        .map_err(|_| Error::Other("the peer sent a line that is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_through_text() {
        let traffic = |pattern| Request::Traffic { pattern, size_bytes: 64, rate_bps: 1e6 };
        for request in Pattern::ALL.map(traffic).into_iter().chain([Request::Counters]) {
            assert_eq!(Request::parse(request.line().trim_end()).unwrap(), request);
        }
    }

    #[test]
    fn lines_are_refused_when_they_are_no_requests() {
        for line in [
            "",
            "GET / HTTP/1.1",
            "weft-bench 0 tcp_rr 1 0",
            "weft-bench 2 ",
            "weft-bench 2 tcp_rr",
            "weft-bench 2 tcp_rr 0 0",
            "weft-bench 2 tcp_rr 99999999999 0",
            "weft-bench 2 udp_rr 1 0",
            "weft-bench 2 tcp_stream 1 -5",
            "weft-bench 2 tcp_stream 1 NaN",
        ] {
            assert!(Request::parse(line).is_err(), "{line}");
        }
    }
}
