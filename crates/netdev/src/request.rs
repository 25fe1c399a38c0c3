//! Netlink protocols beside the route socket: plain requests, answers as bytes.
//!
//! The kernel answers before the system call that sent the request returns; the limit of the socket holds all the same.

use std::cell::Cell;

use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::netlink::receive;
use crate::{Error, Result};

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
/// In a message of a dump: the table changed meanwhile.
const DUMP_INTERRUPTED: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
const ANSWER_TIMEOUT_MS: i64 = 5_000;
const RECEIVE_BYTES: usize = 64 * 1024;
const DUMP_ATTEMPTS: u32 = 20;

/// How much is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// One object.
    One,
    /// All there are.
    All,
}

/// A socket of one netlink protocol, in the namespace in which it was opened.
pub(crate) struct Requester {
    socket: Socket,
    sequence: Cell<u32>,
}

impl std::fmt::Debug for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requester").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Requester {
    /// Opens a socket of `protocol` in the namespace of the calling thread.
    pub(crate) fn open(protocol: isize) -> Result<Self> {
        let what =
            |error| Error::os(format!("open a socket of netlink protocol {protocol}"), error);
        let mut socket = Socket::new(protocol).map_err(what)?;
        socket.bind_auto().map_err(what)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(what)?;
        let timeout = TimeVal::milliseconds(ANSWER_TIMEOUT_MS);
        setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)
            .map_err(|errno| Error::os("limit the waiting time of a netlink socket", errno))?;
        Ok(Self { socket, sequence: Cell::new(0) })
    }

    /// Sends a message of type `kind` and returns the payloads of the answers. `what` is
    /// operation and object, for the error. A dump starts over when what it lists has changed meanwhile.
    pub(crate) fn ask(
        &self,
        what: &str,
        kind: u16,
        scope: Scope,
        payload: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        for _ in 0..DUMP_ATTEMPTS {
            let answers = self.exchange(what, kind, scope, payload)?;
            if !answers.interrupted {
                return Ok(answers.payloads);
            }
        }
        Err(Error::os(format!("{what}: the table kept changing"), Errno::EINTR))
    }

    fn exchange(&self, what: &str, kind: u16, scope: Scope, payload: &[u8]) -> Result<Answers> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let flags = REQUEST | if scope == Scope::All { DUMP } else { ACK };
        let length = u32::try_from(HEADER_BYTES + payload.len())
            .map_err(|_| Error::invalid(what.to_owned(), "a request of more than 4 GiB"))?;
        let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(payload);
        self.socket.send(&message, 0).map_err(|error| Error::os(what.to_owned(), error))?;

        let mut answers = Answers::default();
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let datagram = receive(&self.socket, &mut buffer).map_err(|errno| match errno {
                Errno::EAGAIN => Error::os(what.to_owned(), Errno::ETIMEDOUT),
                other => Error::os(what.to_owned(), other),
            })?;
            if answers.take(what, sequence, datagram)? {
                return Ok(answers);
            }
        }
    }
}

#[derive(Default, Debug)]
struct Answers {
    payloads: Vec<Vec<u8>>,
    interrupted: bool,
}

impl Answers {
    /// Takes in one datagram; true when it completes the answer.
    fn take(&mut self, what: &str, sequence: u32, mut datagram: &[u8]) -> Result<bool> {
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
        };
        while !datagram.is_empty() {
            let length = word(datagram, 0).map_or(0, |length| length as usize);
            let message = datagram.get(..length).filter(|message| message.len() >= HEADER_BYTES);
            let Some(message) = message else {
                let reason = "a message longer than its datagram, or shorter than its header";
                return Err(Error::malformed(what.to_owned(), reason));
            };
            datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
            if word(message, 8) != Some(sequence) {
                continue;
            }
            let kind_and_flags = word(message, 4).unwrap_or(0).to_ne_bytes();
            let kind = u16::from_ne_bytes([kind_and_flags[0], kind_and_flags[1]]);
            let flags = u16::from_ne_bytes([kind_and_flags[2], kind_and_flags[3]]);
            self.interrupted |= flags & DUMP_INTERRUPTED != 0 && kind != ERROR;
            match kind {
                ERROR | DONE => {
                    let code = word(message, HEADER_BYTES).unwrap_or(0).cast_signed();
                    return match code {
                        0 => Ok(true),
                        _ => {
                            Err(Error::os(what.to_owned(), Errno::from_raw(code.saturating_neg())))
                        }
                    };
                }
                _ => {
                    let payload = message.get(HEADER_BYTES..).unwrap_or_default().to_vec();
                    self.payloads.push(payload);
                }
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn answers_end_with_the_acknowledgement_of_their_own_request() {
        let mut bytes = message(40, 2, 7, b"abcd");
        bytes.extend(message(ERROR, 0, 6, &[0xff; 4]));
        bytes.extend(message(DONE, DUMP_INTERRUPTED, 7, &[0; 4]));
        let mut answers = Answers::default();
        assert!(answers.take("ask", 7, &bytes).unwrap());
        assert!(answers.payloads == [b"abcd".to_vec()] && answers.interrupted);
    }

    #[test]
    fn refusal_is_the_error_of_the_kernel() {
        let bytes = message(ERROR, 0, 7, &(-libc::EPERM).to_ne_bytes());
        let error = Answers::default().take("list rules", 7, &bytes).unwrap_err();
        assert!(error.is_permission() && error.to_string().starts_with("list rules:"));
    }

    #[test]
    fn datagram_is_refused_when_cut_anywhere() {
        let whole = message(40, 2, 7, b"abcdefgh");
        for length in 1..whole.len() {
            let error = Answers::default().take("ask", 7, &whole[..length]).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{length}");
        }
    }
}
