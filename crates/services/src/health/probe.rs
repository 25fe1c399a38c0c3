//! [`Probe`]: one running check. For TCP and HTTP it is the client side of a short connection.

use super::frame::{Answer, Segment, datagram, frame, segment};
use super::{Check, Failure, Kind};
use wire::{Protocol, TcpFlags};

/// The retransmission timeout of TCP segments.
const RESEND_MS: u64 = 1000;
/// The length of a UDP header, which is the minimum that an ICMPv4 error quotes (RFC 792).
const UDP_LEN: usize = 8;
/// The length of `HTTP/1.1 200`, the part of the status line that is read.
const STATUS_LEN: usize = 12;

/// A running check.
pub(super) struct Probe {
    pub(super) source_port: u16,
    pub(super) deadline_ms: u64,
    resend_ms: u64,
    /// Random bits. The lower half is the initial TCP sequence number. A UDP probe carries all of
    /// them as its payload, which has the same length as in OVN.
    secret: u64,
    stage: Stage,
}

enum Stage {
    /// A SYN or a datagram has been sent.
    Opening,
    /// The request has been sent.
    Requested {
        /// The next sequence number of the backend.
        next: u32,
        /// The start of the HTTP response.
        answer: Vec<u8>,
    },
}

/// The effect of an answer.
pub(super) enum Outcome {
    /// More answers are needed.
    Continues,
    /// The check has ended with this result.
    Ended(Result<(), Failure>),
}

impl Probe {
    pub(super) fn new(check: &Check, source_port: u16, secret: u64, now_ms: u64) -> Self {
        let deadline_ms = now_ms + u64::from(check.timing.timeout_ms.max(1));
        Self { source_port, deadline_ms, resend_ms: now_ms, secret, stage: Stage::Opening }
    }

    /// The initial sequence number.
    const fn sequence(&self) -> u32 {
        // The cast takes the lower half.
        self.secret as u32
    }

    /// The identification of the IPv4 header of a datagram.
    const fn ident(&self) -> u16 {
        // Shifted by 48 bits, the value fits 16 bits.
        (self.secret >> 48) as u16
    }

    fn datagram(&self, check: &Check) -> Vec<u8> {
        datagram(check, self.source_port, &self.secret.to_be_bytes())
    }

    /// When the probe is sent again, or times out.
    pub(super) const fn due_ms(&self) -> u64 {
        if self.resend_ms < self.deadline_ms { self.resend_ms } else { self.deadline_ms }
    }

    /// The frame that has not been answered yet, to be sent again.
    pub(super) fn resend(&mut self, check: &Check, now_ms: u64) -> Vec<u8> {
        self.resend_ms = now_ms + RESEND_MS;
        match (&check.kind, &self.stage) {
            (Kind::Udp, _) => {
                // Only one datagram is sent, as in OVN: no answer means success.
                self.resend_ms = self.deadline_ms;
                frame(check, (Protocol::UDP, self.ident()), &self.datagram(check))
            }
            (Kind::Http(path), Stage::Requested { next, .. }) => {
                let request = request(check, path.as_str());
                let flags = TcpFlags::ACK | TcpFlags::PSH;
                self.segment(check, (self.sequence().wrapping_add(1), *next), flags, &request)
            }
            _ => self.segment(check, (self.sequence(), 0), TcpFlags::SYN, &[]),
        }
    }

    fn segment(
        &self,
        check: &Check,
        (seq, ack): (u32, u32),
        flags: TcpFlags,
        payload: &[u8],
    ) -> Vec<u8> {
        segment(check, &Segment { source_port: self.source_port, seq, ack, flags }, payload)
    }

    /// The segment that resets the connection, if the probe has opened one.
    pub(super) fn reset(&self, check: &Check) -> Option<Vec<u8>> {
        match (&check.kind, &self.stage) {
            (Kind::Udp, _) | (_, Stage::Opening) => None,
            (Kind::Tcp, Stage::Requested { next, .. }) => {
                let place = (self.sequence().wrapping_add(1), *next);
                Some(self.segment(check, place, TcpFlags::RST | TcpFlags::ACK, &[]))
            }
            (Kind::Http(path), Stage::Requested { next, .. }) => {
                let sent = request(check, path.as_str()).len() as u32;
                let place = (self.sequence().wrapping_add(1).wrapping_add(sent), *next);
                Some(self.segment(check, place, TcpFlags::RST | TcpFlags::ACK, &[]))
            }
        }
    }

    /// Handles an answer; `None` if it does not belong to this probe. Also returns the next frame
    /// of the connection, if there is one.
    pub(super) fn receive(
        &mut self,
        check: &Check,
        answer: &Answer<'_>,
        now_ms: u64,
    ) -> Option<(Outcome, Option<Vec<u8>>)> {
        match (answer, &check.kind) {
            (Answer::PortUnreachable { ident, datagram, .. }, Kind::Udp) => self
                .is_quoted(check, *ident, datagram)
                .then_some((Outcome::Ended(Err(Failure::Refused)), None)),
            (Answer::Segment { seq, ack, flags, payload, .. }, Kind::Tcp | Kind::Http(_)) => {
                self.receive_segment(check, (*seq, *ack), *flags, payload, now_ms)
            }
            _ => None,
        }
    }

    /// True if an ICMP error quotes the datagram of this probe. It must quote the random checksum
    /// and IPv4 identification, or the random payload, so only a receiver of the datagram can send
    /// it.
    fn is_quoted(&self, check: &Check, ident: Option<u16>, quoted: &[u8]) -> bool {
        let sent = self.datagram(check);
        // RFC 792 requires 8 bytes of the datagram, RFC 4443 section 3.1 as many as fit. Bytes
        // after the datagram are padding (RFC 4884 section 4).
        let least = if ident.is_some() { UDP_LEN } else { sent.len() };
        quoted.len() >= least
            && ident.is_none_or(|ident| ident == self.ident())
            && quoted.iter().zip(&sent).all(|(quoted, sent)| quoted == sent)
    }

    fn receive_segment(
        &mut self,
        check: &Check,
        (seq, ack): (u32, u32),
        flags: TcpFlags,
        payload: &[u8],
        now_ms: u64,
    ) -> Option<(Outcome, Option<Vec<u8>>)> {
        let ended = |result| Some((Outcome::Ended(result), None));
        let is_acked = flags.contains(TcpFlags::ACK) && ack == self.sequence().wrapping_add(1);
        match &mut self.stage {
            Stage::Opening if flags.contains(TcpFlags::RST) => {
                if is_acked {
                    ended(Err(Failure::Refused))
                } else {
                    None
                }
            }
            Stage::Opening => {
                if !is_acked || !flags.contains(TcpFlags::SYN) {
                    return None;
                }
                self.stage = Stage::Requested { next: seq.wrapping_add(1), answer: Vec::new() };
                match &check.kind {
                    Kind::Http(_) => {
                        let frame = self.resend(check, now_ms);
                        Some((Outcome::Continues, Some(frame)))
                    }
                    _ => ended(Ok(())),
                }
            }
            // An out-of-order segment is ignored: the backend retransmits it.
            Stage::Requested { next, .. } if seq != *next => None,
            Stage::Requested { .. } if flags.contains(TcpFlags::RST) => ended(Err(Failure::Closed)),
            Stage::Requested { next, answer } => {
                let room = STATUS_LEN - answer.len().min(STATUS_LEN);
                answer.extend(payload.iter().take(room));
                // The cast is lossless: a payload is shorter than an IP packet.
                *next = next.wrapping_add(payload.len() as u32);
                if answer.len() == STATUS_LEN {
                    let result = status(answer);
                    return ended(result);
                }
                if flags.contains(TcpFlags::FIN) {
                    let why = if answer.is_empty() { Failure::Closed } else { Failure::NotHttp };
                    return ended(Err(why));
                }
                Some((Outcome::Continues, None))
            }
        }
    }
}

/// The request of an HTTP check.
fn request(check: &Check, path: &str) -> Vec<u8> {
    let host = check.backend;
    format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: weft\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// The result of a check by the start of the status line (RFC 9112 section 4).
fn status(answer: &[u8]) -> Result<(), Failure> {
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0'..=b'9', b' ', code @ ..] = answer else {
        return Err(Failure::NotHttp);
    };
    let code = std::str::from_utf8(code).ok().filter(|code| code.len() == 3);
    match code.and_then(|code| code.parse::<u16>().ok()) {
        Some(200..=399) => Ok(()),
        Some(code) => Err(Failure::HttpStatus(code)),
        None => Err(Failure::NotHttp),
    }
}
