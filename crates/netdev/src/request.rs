//! Requests to the kernel over netlink (netlink(7)), of any protocol.
//!
//! Calls are synchronous. The kernel replies to a request before the system call that sent it
//! returns, so reading does not wait in practice. In case a reply is missing, [`ANSWER_TIMEOUT_MS`]
//! limits the wait.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::{Error, Result};

const ANSWER_TIMEOUT_MS: i64 = 10_000;
/// No datagram of the kernel is longer: a dump comes in datagrams of at most 32 KiB.
pub(crate) const RECEIVE_BYTES: usize = 64 * 1024;
/// How often to start over when the table changes during a dump.
const DUMP_ATTEMPTS: u32 = 20;
/// The attribute of an extended acknowledgement that holds text (NLMSGERR_ATTR_MSG).
const ACK_TEXT: u16 = 1;
/// Length of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// A netlink socket for requests, in the namespace of the thread that opened it.
pub(crate) struct Requester {
    socket: Socket,
    sequence: Cell<u32>,
    buffer: RefCell<Vec<u8>>,
}

impl Requester {
    /// Opens a socket of `protocol` (`NETLINK_*`) in the namespace of the calling thread.
    pub(crate) fn open(protocol: isize) -> Result<Self> {
        let socket = open_socket(protocol, &[])?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(ANSWER_TIMEOUT_MS))
            .map_err(|errno| Error::os("set the timeout of a netlink socket", errno))?;
        Ok(Self { socket, sequence: Cell::new(0), buffer: RefCell::new(vec![0; RECEIVE_BYTES]) })
    }

    /// Sends a request and returns the messages that come before its acknowledgement. `what` names
    /// operation and object in the error; `flags` are those of netlink(7), such as `NLM_F_CREATE`.
    pub(crate) fn request<M: Message>(&self, what: &str, message: M, flags: u16) -> Result<Vec<M>> {
        self.exchange(what, message, flags | NLM_F_ACK).map(|answers| answers.messages)
    }

    /// Lists all objects of a kind. Starts over when the kernel reports that the table changed
    /// during the dump.
    pub(crate) fn dump<M: Message + Clone>(&self, what: &str, message: M) -> Result<Vec<M>> {
        for _ in 0..DUMP_ATTEMPTS {
            let answers = self.exchange(what, message.clone(), NLM_F_DUMP)?;
            if !answers.interrupted {
                return Ok(answers.messages);
            }
        }
        Err(Error::os(format!("{what}: the table kept changing; try again"), Errno::EINTR))
    }

    /// Sends one request and collects everything up to its acknowledgement, error or end of dump.
    fn exchange<M: Message>(
        &self,
        what: &str,
        message: M,
        flags: u16,
    ) -> Result<RequestReplies<M>> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let mut header = NetlinkHeader::default();
        header.flags = flags | NLM_F_REQUEST;
        header.sequence_number = sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(|error| Error::os(what.to_owned(), error))?;

        let mut answers = RequestReplies::default();
        let mut buffer = self.buffer.borrow_mut();
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

impl std::fmt::Debug for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requester").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

/// A message of one netlink protocol, without the netlink header.
pub(crate) trait Message: NetlinkSerializable + NetlinkDeserializable {}
impl<M: NetlinkSerializable + NetlinkDeserializable> Message for M {}

/// A message of a protocol that no `netlink-packet-*` dependency decodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RawMessage {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    pub(crate) payload: Vec<u8>,
}

impl NetlinkSerializable for RawMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.payload.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.payload);
    }
}

impl NetlinkDeserializable for RawMessage {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self { kind: header.message_type, payload: payload.to_vec() })
    }
}

/// The kernel's answers to one request so far.
struct RequestReplies<M> {
    messages: Vec<M>,
    interrupted: bool,
}

impl<M> Default for RequestReplies<M> {
    fn default() -> Self {
        Self { messages: Vec::new(), interrupted: false }
    }
}

impl<M: NetlinkDeserializable> RequestReplies<M> {
    /// Adds the messages of one datagram; returns true when they complete the answer.
    fn take(&mut self, what: &str, sequence: u32, datagram: &[u8]) -> Result<bool> {
        for bytes in messages(datagram) {
            let bytes = bytes.map_err(|reason| Error::malformed(what.to_owned(), reason))?;
            let header = NetlinkBuffer::new(bytes);
            // Skip a late reply to an earlier request that timed out.
            if header.sequence_number() != sequence {
                continue;
            }
            let flags = header.flags();
            self.interrupted |= flags & NLM_F_DUMP_INTR != 0;
            match decode(bytes) {
                Ok(NetlinkPayload::InnerMessage(message)) => self.messages.push(message),
                Ok(NetlinkPayload::Done(done)) => {
                    return outcome(what, done.code, ack_text(&done.extended_ack)).map(|()| true);
                }
                Ok(NetlinkPayload::Error(error)) => {
                    let text = ack_attributes(&error.header, flags).and_then(ack_text);
                    let code = error.code.map_or(0, |code| code.get());
                    return outcome(what, code, text).map(|()| true);
                }
                Ok(_) => {}
                // One object with an attribute that the decoder rejects must not hide the others.
                Err(reason) => messages::log!(
                    NETLINK_MESSAGE_SKIPPED,
                    what,
                    reason,
                    "skipped a netlink message"
                ),
            }
        }
        Ok(false)
    }
}

/// Turns the code of an acknowledgement (0 or a negated error number) and its text into a result.
fn outcome(what: &str, code: i32, text: Option<String>) -> Result<()> {
    if code == 0 {
        if let Some(text) = text {
            messages::log!(KERNEL_WARNING, what, text, "the kernel warns");
        }
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(code.saturating_neg());
    let what = what.to_owned().into();
    Err(match text {
        Some(reason) => Error::Refused { what, source, reason },
        None => Error::Os { what, source },
    })
}

/// The attributes after the copy of the request in an error message.
fn ack_attributes(copy: &[u8], flags: u16) -> Option<&[u8]> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let copied = if flags & NLM_F_CAPPED != 0 {
        HEADER_BYTES
    } else {
        let length = u32::from_ne_bytes(copy.get(..4)?.try_into().ok()?);
        usize::try_from(length).ok()?.checked_next_multiple_of(4)?
    };
    copy.get(copied..)
}

/// The text in the attributes of an extended acknowledgement.
fn ack_text(attributes: impl AsRef<[u8]>) -> Option<String> {
    NlasIterator::new(attributes.as_ref())
        .map_while(std::result::Result::ok)
        .find(|attribute| attribute.kind() == ACK_TEXT)
        .map(|attribute| {
            String::from_utf8_lossy(attribute.value()).trim_end_matches(['\0', '.', ' ']).to_owned()
        })
        .filter(|text| !text.is_empty())
}

/// Opens and binds a socket of `protocol` in the current namespace, subscribed to `groups`.
pub(crate) fn open_socket(protocol: isize, groups: &[u32]) -> Result<Socket> {
    let what = |error| Error::os(format!("open a socket of netlink protocol {protocol}"), error);
    let mut socket = Socket::new(protocol).map_err(what)?;
    // Kernels before 4.20 lack some of these options. Errors then come without text, and dumps
    // without filter.
    for result in [
        socket.set_ext_ack(true),
        socket.set_cap_ack(true),
        socket.set_netlink_get_strict_chk(true),
    ] {
        if let Err(error) = result {
            messages::log!(
                SOCKET_OPTION_MISSING,
                %error,
                "the kernel lacks a netlink socket option"
            );
        }
    }
    socket.bind_auto().map_err(what)?;
    for group in groups {
        socket
            .add_membership(*group)
            .map_err(|error| Error::os(format!("subscribe to netlink group {group}"), error))?;
    }
    socket.connect(&SocketAddr::new(0, 0)).map_err(what)?;
    Ok(socket)
}

/// Receives one datagram into `buffer`.
pub(crate) fn receive<'a>(socket: &impl AsFd, buffer: &'a mut [u8]) -> nix::Result<&'a [u8]> {
    let fd = socket.as_fd().as_raw_fd();
    loop {
        match recv(fd, buffer, MsgFlags::MSG_TRUNC) {
            Ok(length) => return buffer.get(..length).ok_or(Errno::EMSGSIZE),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The messages of one datagram, each with its header. Ends after the first impossible length.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Result<&[u8], &'static str>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let length = NetlinkBuffer::new_checked(datagram).map(|header| header.length() as usize);
        let Some(message) = length.ok().and_then(|length| datagram.get(..length)) else {
            datagram = &[];
            return Some(Err("a message longer than its datagram"));
        };
        datagram = datagram.get(message.len().next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok(message))
    })
}

/// Decodes one message; the error is the decoder's text.
pub(crate) fn decode<M: NetlinkDeserializable>(bytes: &[u8]) -> Result<NetlinkPayload<M>, String> {
    NetlinkMessage::deserialize(bytes)
        .map(|message| message.payload)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::RouteNetlinkMessage;

    /// A message: length, type, flags, sequence number, port number, payload.
    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((16 + payload.len() as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn refusal(flags: u16, copy: &[u8]) -> Vec<u8> {
        let mut payload = (-libc::EINVAL).to_ne_bytes().to_vec();
        payload.extend(copy);
        payload.extend(b"\x0e\0\x01\0no such.\0\0\0\0");
        message(libc::NLMSG_ERROR as u16, flags, 7, &payload)
    }

    fn answers() -> RequestReplies<RouteNetlinkMessage> {
        RequestReplies::default()
    }

    #[test]
    fn kernel_text_is_in_the_error_when_the_acknowledgement_carries_it() {
        let request = message(16, 0, 7, &[0xa5; 20]);
        for (flags, copy) in
            [(NLM_F_ACK_TLVS | NLM_F_CAPPED, &request[..16]), (NLM_F_ACK_TLVS, &request[..])]
        {
            let error = answers().take("set mtu", 7, &refusal(flags, copy)).err().unwrap();
            assert_eq!(error.to_string(), "set mtu: Invalid argument (os error 22): no such");
        }
    }

    #[test]
    fn error_is_plain_when_the_acknowledgement_has_no_text() {
        let bytes = refusal(NLM_F_CAPPED, &[0; 16]);
        let error = answers().take("set mtu", 7, &bytes).err().unwrap();
        assert_eq!(error.to_string(), "set mtu: Invalid argument (os error 22)");
    }

    #[test]
    fn answers_are_ignored_when_they_belong_to_another_request() {
        let bytes = refusal(NLM_F_CAPPED, &[0; 16]);
        assert!(matches!(answers().take("set mtu", 8, &bytes), Ok(false)));
    }

    #[test]
    fn raw_messages_are_kept_whole_until_the_dump_ends() {
        let mut bytes = message(40, 2, 7, b"abcd");
        bytes.extend(message(41, 2, 6, b"of another request"));
        bytes.extend(message(libc::NLMSG_DONE as u16, NLM_F_DUMP_INTR, 7, &[0; 4]));
        let mut answers = RequestReplies::default();
        assert!(matches!(answers.take("list rules", 7, &bytes), Ok(true)));
        let expected = [RawMessage { kind: 40, payload: b"abcd".to_vec() }];
        assert_eq!((answers.messages.as_slice(), answers.interrupted), (&expected[..], true));
    }

    #[test]
    fn dump_is_marked_interrupted_when_the_end_says_so() {
        let done = message(libc::NLMSG_DONE as u16, NLM_F_DUMP_INTR, 7, &[0; 4]);
        let mut answers = answers();
        assert!(matches!(answers.take("list links", 7, &done), Ok(true)));
        assert!(answers.interrupted);
    }

    #[test]
    fn datagram_is_refused_when_cut_anywhere() {
        let whole = refusal(NLM_F_ACK_TLVS | NLM_F_CAPPED, &[0; 16]);
        for length in 1..whole.len() {
            let error = answers().take("set mtu", 7, &whole[..length]).err();
            assert!(matches!(error, Some(Error::Malformed { .. })), "{length}");
        }
    }

    #[test]
    fn unknown_object_is_skipped_when_it_does_not_decode() {
        let mut bytes = message(16, 0, 7, &[0; 3]);
        bytes.extend(message(libc::NLMSG_DONE as u16, 0, 7, &[0; 4]));
        let mut answers = answers();
        assert!(matches!(answers.take("list links", 7, &bytes), Ok(true)));
        assert!(answers.messages.is_empty());
    }
}
