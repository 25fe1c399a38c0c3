//! Echo requests (ICMP, RFC 792; ICMPv6, RFC 4443 section 4.1) over the kernel's ping sockets. The
//! kernel sets identifier and checksum, and delivers only replies to requests of this socket.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::lab::{Attachment, Guest};
use crate::stats::median;
use crate::{Error, Result, Stop};

const ICMPV4_ECHO_REQUEST: u8 = 8;
const ICMPV4_ECHO_REPLY: u8 = 0;
const ICMPV6_ECHO_REQUEST: u8 = 128;
const ICMPV6_ECHO_REPLY: u8 = 129;
/// The ICMP header and the customary 56 bytes of payload.
const ECHO_LEN: usize = 8 + 56;
/// How long to wait for a reply. A busy machine may schedule the receiver late.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long to wait for each reply before the target has replied for the first time. A short
/// timeout repeats requests often, so that the first reply is measured precisely.
const PROBE_TIMEOUT: Duration = Duration::from_millis(50);

/// How long the first ping may take, including the start of daemons.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Round-trip times of a series of pings.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct PingReport {
    /// Requests sent.
    pub sent: u32,
    /// Replies received in time.
    pub received: u32,
    /// Median round-trip time in microseconds; `None` without any reply.
    pub rtt_median_us: Option<f64>,
    /// Longest round-trip time in microseconds.
    pub rtt_max_us: Option<f64>,
}

impl PingReport {
    /// The report of the round-trip times of all requests, `None` for a request without a reply.
    fn of(rtts: &[Option<Duration>]) -> Self {
        let rtts_us: Vec<f64> = rtts.iter().flatten().map(|rtt| rtt.as_secs_f64() * 1e6).collect();
        Self {
            sent: rtts.len() as u32,
            received: rtts_us.len() as u32,
            rtt_max_us: rtts_us.iter().copied().max_by(f64::total_cmp),
            rtt_median_us: median(rtts_us),
        }
    }

    /// True when every request was answered.
    pub fn is_complete(&self) -> bool {
        self.received == self.sent
    }
}

/// An open ping socket toward one address. It stays in the network namespace in which it was
/// opened.
#[derive(Debug)]
pub struct Pinger {
    socket: UdpSocket,
    target: IpAddr,
    sequence: u16,
}

impl Pinger {
    /// Opens a ping socket in the network namespace of the calling thread. `ping_group_range` there
    /// must include this process's group, as it does in the namespaces of a lab.
    ///
    /// # Errors
    /// The group is not included, or there is no route to `target`.
    pub fn open(target: IpAddr) -> Result<Self> {
        let what = || format!("open a ping socket to {target}");
        let (family, protocol) = match target {
            IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
            IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        let fd = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)
            .map_err(Error::io(what()))?;
        // A ping socket is used like a UDP socket, with echo identifiers as ports.
        let socket = UdpSocket::from(fd);
        socket.connect(SocketAddr::new(target, 0)).map_err(Error::io(what()))?;
        Ok(Self { socket, target, sequence: 0 })
    }

    /// Sends requests until the first reply, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Deadline`] without an answer, [`Error::Interrupted`].
    pub fn wait_for_answer(&mut self, limit: Duration, stop: &Stop) -> Result<()> {
        let what = format!("a ping answer from {}", self.target);
        let mut last_error = String::new();
        stop.wait_for(&what, limit, || {
            Ok(match self.ping_once(PROBE_TIMEOUT) {
                Ok(answer) => answer.map(|_| ()),
                // Until the path works, "no route" and "host unreachable" are expected.
                Err(error) => {
                    last_error = error.to_string();
                    None
                }
            })
        })
        .map_err(|error| match error {
            Error::Deadline { what, limit, .. } => {
                Error::Deadline { what, limit, detail: last_error.clone() }
            }
            other => other,
        })
    }

    /// Sends `count` requests, each after the reply to the previous one.
    ///
    /// # Errors
    /// The network reports that the target is unreachable, or [`Error::Interrupted`]. A missing
    /// reply is not an error; the report counts it.
    pub fn run(&mut self, count: u32, stop: &Stop) -> Result<PingReport> {
        let mut rtts = Vec::new();
        for _ in 0..count {
            stop.check()?;
            rtts.push(self.ping_once(ANSWER_TIMEOUT)?);
        }
        Ok(PingReport::of(&rtts))
    }

    /// Sends a request every `interval`, or after the reply to the previous one if that is later,
    /// for `duration`.
    ///
    /// # Errors
    /// Like [`Pinger::run`].
    pub fn run_for(
        &mut self,
        duration: Duration,
        interval: Duration,
        stop: &Stop,
    ) -> Result<PingReport> {
        let start = Instant::now();
        let mut rtts = Vec::new();
        while start.elapsed() < duration {
            let next = Instant::now() + interval;
            rtts.push(self.ping_once(ANSWER_TIMEOUT)?);
            stop.sleep(next.saturating_duration_since(Instant::now()))?;
        }
        Ok(PingReport::of(&rtts))
    }

    /// Sends one request. Returns the round-trip time of its reply; `None` after `timeout`.
    fn ping_once(&mut self, timeout: Duration) -> Result<Option<Duration>> {
        let failed = |e| Error::io(format!("ping {}", self.target))(e);
        self.sequence = self.sequence.wrapping_add(1);
        let request = echo_request(self.target, self.sequence);
        let start = Instant::now();
        self.socket.send(&request).map_err(failed)?;
        let mut answer = [0; 2 * ECHO_LEN];
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left)).map_err(failed)?;
            match self.socket.recv(&mut answer) {
                Ok(len) if is_answer(self.target, self.sequence, &answer[..len]) => {
                    return Ok(Some(start.elapsed()));
                }
                // A late reply to an earlier request.
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

/// Waits until `from` has a device and `to` replies. Checks meanwhile that the contender's
/// processes are running.
pub fn first_ping(
    from: &Guest,
    to: &Guest,
    attachment: &mut Attachment,
    stop: &Stop,
) -> Result<Pinger> {
    let what = format!("the first ping from {} to {}", from.name(), to.name());
    let mut last = String::new();
    let opened = stop.wait_for(&what, READY_LIMIT, || {
        attachment.check_running()?;
        // There is no route before the device exists.
        let opened = from.run(|| Pinger::open(to.ip4().into()))?.and_then(|mut pinger| {
            pinger.wait_for_answer(Duration::from_millis(200), stop).map(|()| pinger)
        });
        match opened {
            Ok(pinger) => Ok(Some(pinger)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                last = error.to_string();
                Ok(None)
            }
        }
    });
    opened.map_err(|error| match error {
        Error::Deadline { what, limit, .. } => {
            Error::Deadline { what, limit, detail: last.clone() }
        }
        other => other,
    })
}

/// An echo request with a sequence number and a payload; the kernel sets checksum and identifier.
fn echo_request(target: IpAddr, sequence: u16) -> [u8; ECHO_LEN] {
    let mut bytes = [0x77; ECHO_LEN];
    bytes[..8].fill(0);
    bytes[0] = if target.is_ipv4() { ICMPV4_ECHO_REQUEST } else { ICMPV6_ECHO_REQUEST };
    bytes[6..8].copy_from_slice(&sequence.to_be_bytes());
    bytes
}

/// True when `bytes` are the reply to the [`echo_request`] with the same arguments, including its
/// payload.
fn is_answer(target: IpAddr, sequence: u16, bytes: &[u8]) -> bool {
    let reply = if target.is_ipv4() { ICMPV4_ECHO_REPLY } else { ICMPV6_ECHO_REPLY };
    bytes.len() == ECHO_LEN
        && bytes[..2] == [reply, 0]
        && bytes[6..] == echo_request(target, sequence)[6..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_told_from_others_when_type_sequence_or_payload_differ() {
        for (target, reply) in [("192.0.2.1", 0), ("2001:db8::1", 129)] {
            let target: IpAddr = target.parse().unwrap();
            let mut answer = echo_request(target, 7);
            assert!(!is_answer(target, 7, &answer), "a request is no answer");
            answer[0] = reply;
            answer[2..6].copy_from_slice(&[1, 2, 3, 4]);
            assert!(is_answer(target, 7, &answer));
            assert!(!is_answer(target, 8, &answer));
            assert!(!is_answer(target, 7, &answer[..ECHO_LEN - 1]));
            answer[ECHO_LEN - 1] ^= 1;
            assert!(!is_answer(target, 7, &answer));
        }
    }
}
