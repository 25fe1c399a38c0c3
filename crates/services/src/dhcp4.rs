//! DHCP for IPv4 (RFC 2131), for a client whose address is known in advance.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! |   op (1 or 2) |   htype       |   hlen        |   hops        |
//! +---------------+---------------+---------------+---------------+
//! |                      xid: chosen by the client                |
//! +-------------------------------+-------------------------------+
//! |           secs                |B|         flags               |
//! +-------------------------------+-------------------------------+
//! |           ciaddr, yiaddr, siaddr, giaddr: 4 bytes each        |
//! |           chaddr: 16 bytes, sname: 64, file: 128              |
//! +---------------------------------------------------------------+
//! |           magic cookie 99.130.83.99                           |
//! |           options: code (8), length (8), data; 255 ends       |
//! +---------------------------------------------------------------+
//! ```

use crate::Destination;
use crate::domain_name::{self, BadDomainName};
use std::net::Ipv4Addr;

/// The UDP port of servers.
pub const SERVER_PORT: u16 = 67;
/// The UDP port of clients.
pub const CLIENT_PORT: u16 = 68;
/// The longest list of options in an answer, in bytes. With all headers, the answer fits the
/// minimum MTU of IPv6, 1,280 bytes.
pub const MAX_OPTIONS_LEN: usize = 1000;

const HEADER_LEN: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The minimum length of a message: some clients discard shorter ones (RFC 1542 section 2.1).
const MIN_MESSAGE_LEN: usize = 300;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// The flag of a client that cannot receive unicast before it is configured.
const BROADCAST_FLAG: u8 = 0x80;

/// Offsets in the header.
mod at {
    use std::ops::Range;

    pub const OP: usize = 0;
    pub const HOPS: usize = 3;
    pub const SECS: Range<usize> = 8..10;
    pub const FLAGS: usize = 10;
    pub const CIADDR: Range<usize> = 12..16;
    pub const YIADDR: Range<usize> = 16..20;
    pub const SIADDR: Range<usize> = 20..24;
    pub const NAMES: Range<usize> = 44..236;
}

/// Codes of options (RFC 2132).
mod code {
    pub const PAD: u8 = 0;
    pub const NETMASK: u8 = 1;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const T1: u8 = 58;
    pub const T2: u8 = 59;
    pub const BOOT_FILE: u8 = 67;
    /// Set by clients of Etherboot and iPXE.
    pub const ETHERBOOT: u8 = 175;
    pub const END: u8 = 255;
}

/// Types of messages (RFC 2132 section 9.6).
mod message {
    pub const DISCOVER: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const ACK: u8 = 5;
    pub const NAK: u8 = 6;
    pub const INFORM: u8 = 8;
}

/// A server for one client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server {
    /// The client's address.
    address: Ipv4Addr,
    /// The server that the client boots from.
    next_server: Option<Ipv4Addr>,
    /// The boot file for iPXE clients, and the boot file for other clients.
    boot_files: [Option<Box<[u8]>>; 2],
    /// The configured options: code and value.
    options: Vec<(u8, Box<[u8]>)>,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The UDP payload.
    pub payload: Vec<u8>,
    /// The IP destination.
    pub destination: Destination,
}

/// A classless route (RFC 3442).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The destination.
    pub destination: Ipv4Addr,
    /// The length of its prefix; more than 32 counts as 32.
    pub prefix_len: u8,
    /// The next hop.
    pub gateway: Ipv4Addr,
}

/// An answer with all options would be longer than [`MAX_OPTIONS_LEN`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the options need {0} bytes, more than {MAX_OPTIONS_LEN}")]
pub struct TooLong(pub usize);

impl Server {
    /// A server that assigns this address to its client, without options.
    pub const fn new(address: Ipv4Addr) -> Self {
        Self { address, next_server: None, boot_files: [None, None], options: Vec::new() }
    }

    /// The address of the client.
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Adds an option that is sent in OFFER and ACK. The server sets the type of the message
    /// itself. A value of more than 255 bytes is sent in several parts (RFC 3396).
    pub fn add(&mut self, code: u8, value: &[u8]) {
        self.options.push((code, value.into()));
    }

    /// Adds an option with addresses.
    pub fn add_addresses(&mut self, code: u8, addresses: &[Ipv4Addr]) {
        let octets = addresses.iter().flat_map(|address| address.octets());
        self.add(code, &octets.collect::<Vec<u8>>());
    }

    /// Adds an option with routes (RFC 3442).
    pub fn add_routes(&mut self, code: u8, routes: &[Route]) {
        let mut value = Vec::new();
        for route in routes {
            let len = route.prefix_len.min(32);
            value.push(len);
            value.extend(&route.destination.octets()[..usize::from(len).div_ceil(8)]);
            value.extend(route.gateway.octets());
        }
        self.add(code, &value);
    }

    /// Adds an option with domain names (RFC 3397). They are not compressed.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn add_domains<'a>(
        &mut self,
        code: u8,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), BadDomainName> {
        let mut value = Vec::new();
        names.into_iter().try_for_each(|name| domain_name::encode(name, &mut value))?;
        self.add(code, &value);
        Ok(())
    }

    /// Sets the address of the server that the client boots from.
    pub const fn set_next_server(&mut self, server: Ipv4Addr) {
        self.next_server = Some(server);
    }

    /// Sets the boot files for iPXE clients and for other clients. If only one is given, all
    /// clients get it.
    pub fn set_boot_files(&mut self, ipxe: Option<&[u8]>, other: Option<&[u8]>) {
        self.boot_files = [ipxe.map(Box::from), other.map(Box::from)];
    }

    /// Checks the length of the longest possible answer.
    ///
    /// # Errors
    /// [`TooLong`] if an answer would exceed [`MAX_OPTIONS_LEN`].
    pub fn check(&self) -> Result<(), TooLong> {
        let files = self.boot_files.iter().flatten().map(|file| file.len()).max();
        let values = self.options.iter().map(|(_, value)| value.len()).chain(files);
        // 4 bytes for the message type and the end option, and a header of 2 bytes for each part of
        // an option.
        let len = values.fold(4, |sum, len| sum + len + 2 * len.div_ceil(255).max(1));
        if len > MAX_OPTIONS_LEN { Err(TooLong(len)) } else { Ok(()) }
    }

    /// The answer to a message of a client. `None` for RELEASE and DECLINE, and for an invalid
    /// message.
    pub fn answer(&self, payload: &[u8]) -> Option<Answer> {
        let request = Request::parse(payload)?;
        let kind = match request.kind {
            message::DISCOVER => message::OFFER,
            message::REQUEST if request.requested_ip() == self.address => message::ACK,
            message::REQUEST => message::NAK,
            message::INFORM => message::ACK,
            _ => return None,
        };
        let is_nak = kind == message::NAK;
        let mut out = Vec::with_capacity(HEADER_LEN + MAX_OPTIONS_LEN);
        out.extend(self.header(&request, kind));
        out.extend(COOKIE);
        put(&mut out, code::MESSAGE_TYPE, &[kind]);
        let has_no_lease = request.kind == message::INFORM;
        for (code, value) in &self.options {
            let is_of_lease =
                matches!(*code, code::NETMASK | code::LEASE_TIME | code::T1 | code::T2);
            let is_sent =
                if is_nak { *code == code::SERVER_ID } else { !has_no_lease || !is_of_lease };
            if is_sent {
                put(&mut out, *code, value);
            }
        }
        if let Some(file) = self.boot_file(&request).filter(|_| !is_nak) {
            put(&mut out, code::BOOT_FILE, file);
        }
        out.push(code::END);
        out.resize(out.len().max(MIN_MESSAGE_LEN), code::PAD);
        // RFC 2131 section 4.1: a NAK is broadcast, because the client may not have a valid
        // address.
        let destination = match request.header[at::FLAGS] & BROADCAST_FLAG {
            0 if !is_nak => Destination::Client,
            _ => Destination::Broadcast,
        };
        Some(Answer { payload: out, destination })
    }

    /// The header of an answer (RFC 2131 section 4.3.1, table 3).
    fn header(&self, request: &Request<'_>, kind: u8) -> [u8; HEADER_LEN] {
        let mut header = *request.header;
        header[at::OP] = REPLY;
        header[at::HOPS] = 0;
        header[at::SECS].fill(0);
        header[at::NAMES].fill(0);
        header[at::YIADDR].fill(0);
        header[at::SIADDR].fill(0);
        if kind != message::ACK {
            header[at::CIADDR].fill(0);
        }
        if kind != message::NAK {
            if request.kind != message::INFORM {
                header[at::YIADDR].copy_from_slice(&self.address.octets());
            }
            let server = self.next_server.unwrap_or(Ipv4Addr::UNSPECIFIED);
            header[at::SIADDR].copy_from_slice(&server.octets());
        }
        header
    }

    fn boot_file(&self, request: &Request<'_>) -> Option<&[u8]> {
        let [ipxe, other] = &self.boot_files;
        let file = if request.is_ipxe {
            ipxe.as_ref().or(other.as_ref())
        } else {
            other.as_ref().or(ipxe.as_ref())
        };
        file.map(|file| &**file)
    }
}

/// Appends an option, in parts of at most 255 bytes.
fn put(out: &mut Vec<u8>, code: u8, value: &[u8]) {
    let mut rest = value;
    loop {
        let (part, after) = rest.split_at(rest.len().min(255));
        // The cast is lossless: a part has at most 255 bytes.
        out.extend([code, part.len() as u8]);
        out.extend(part);
        rest = after;
        if rest.is_empty() {
            return;
        }
    }
}

/// A valid message of a client.
struct Request<'a> {
    header: &'a [u8; HEADER_LEN],
    kind: u8,
    requested_address: Option<Ipv4Addr>,
    is_ipxe: bool,
}

impl<'a> Request<'a> {
    fn parse(payload: &'a [u8]) -> Option<Self> {
        let (header, rest) = payload.split_first_chunk::<HEADER_LEN>()?;
        let options = rest.strip_prefix(&COOKIE)?;
        if header[at::OP] != REQUEST {
            return None;
        }
        let (mut kind, mut requested_address, mut is_ipxe) = (None, None, false);
        for option in Options(options) {
            match option? {
                (code::MESSAGE_TYPE, &[value]) => kind = Some(value),
                (code::REQUESTED_ADDRESS, &[a, b, c, d]) => {
                    requested_address = Some(Ipv4Addr::new(a, b, c, d));
                }
                (code::MESSAGE_TYPE | code::REQUESTED_ADDRESS, _) => return None,
                (code::ETHERBOOT, _) => is_ipxe = true,
                _ => {}
            }
        }
        Some(Self { header, kind: kind?, requested_address, is_ipxe })
    }

    /// The address that a REQUEST asks for. A client that renews its lease sends it in `ciaddr`.
    fn requested_ip(&self) -> Ipv4Addr {
        let header = self.header;
        let own = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
        self.requested_address.unwrap_or(own)
    }
}

/// The options of a message, up to its end. A truncated option yields `None` and ends the
/// iteration.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.0);
        let start = rest.iter().position(|&byte| byte != code::PAD)?;
        let (&code, rest) = rest.get(start..)?.split_first()?;
        if code == code::END {
            return None;
        }
        let Some((value, rest)) =
            rest.split_first().and_then(|(&len, rest)| rest.split_at_checked(len.into()))
        else {
            return Some(None);
        };
        self.0 = rest;
        Some(Some((code, value)))
    }
}

#[cfg(test)]
mod tests;
