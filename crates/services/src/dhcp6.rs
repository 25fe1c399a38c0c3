//! DHCP for IPv6 (RFC 8415), for a client whose address is known in advance.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-----------------------------------------------+
//! |    msg-type   |     transaction-id: chosen by the client      |
//! +---------------+-----------------------------------------------+
//! |           options: code (16), length (16), data               |
//! +---------------------------------------------------------------+
//! ```

use crate::domain_name::{self, BadDomainName};
use std::net::Ipv6Addr;
use wire::MacAddr;

/// The UDP port of servers.
pub const SERVER_PORT: u16 = 547;
/// The UDP port of clients.
pub const CLIENT_PORT: u16 = 546;
/// The longest list of configured options, in bytes. With all headers, the answer fits the minimum
/// MTU of IPv6, 1,280 bytes.
pub const MAX_OPTIONS_LEN: usize = 900;
/// The longest identifier of a client, in bytes (RFC 8415 section 11.1: type and 128 bytes).
const MAX_CLIENT_ID_LEN: usize = 130;

/// Codes of options.
mod code {
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_ADDR: u16 = 5;
    pub const STATUS: u16 = 13;
    pub const USER_CLASS: u16 = 15;
    pub const FQDN: u16 = 39;
    pub const BOOT_FILE_URL: u16 = 59;
}

/// Types of messages.
mod message {
    pub const SOLICIT: u8 = 1;
    pub const ADVERTISE: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const CONFIRM: u8 = 4;
    pub const RENEW: u8 = 5;
    pub const REBIND: u8 = 6;
    pub const REPLY: u8 = 7;
    pub const RELEASE: u8 = 8;
    pub const DECLINE: u8 = 9;
    pub const INFORMATION_REQUEST: u8 = 11;
}

/// Flags of the option with the client's name (RFC 4704 section 4.1).
mod fqdn {
    /// The server updates the AAAA record.
    pub const S: u8 = 1;
    /// The server has overridden S.
    pub const O: u8 = 2;
    /// The server updates nothing.
    pub const N: u8 = 4;
}

/// The lifetime of addresses: infinite, because the address of a port is fixed.
const INFINITY: [u8; 4] = [0xff; 4];

/// A server for one client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server {
    /// The MAC address that identifies the server.
    mac: MacAddr,
    /// The client's address; `None` for a server that assigns no addresses.
    address: Option<Ipv6Addr>,
    /// The boot file for iPXE clients, and the boot file for other clients.
    boot_files: [Option<Box<[u8]>>; 2],
    /// The client's name, encoded.
    name: Option<Box<[u8]>>,
    /// The configured options: code and value.
    options: Vec<(u16, Box<[u8]>)>,
}

/// An answer with all options would be longer than [`MAX_OPTIONS_LEN`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the options need {0} bytes, more than {MAX_OPTIONS_LEN}")]
pub struct TooLong(pub usize);

impl Server {
    /// A server with this MAC address, without options.
    pub const fn new(mac: MacAddr, address: Option<Ipv6Addr>) -> Self {
        Self { mac, address, boot_files: [None, None], name: None, options: Vec::new() }
    }

    /// Adds an option with addresses.
    pub fn add_addresses(&mut self, code: u16, addresses: &[Ipv6Addr]) {
        let octets = addresses.iter().flat_map(|address| address.octets());
        self.options.push((code, octets.collect()));
    }

    /// Adds an option with domain names.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn add_domains<'a>(
        &mut self,
        code: u16,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), BadDomainName> {
        let mut value = Vec::new();
        names.into_iter().try_for_each(|name| domain_name::encode(name, &mut value))?;
        self.options.push((code, value.into()));
        Ok(())
    }

    /// Sets the client's name, which is sent if the client requests it (RFC 4704).
    ///
    /// # Errors
    /// A name is invalid.
    pub fn set_name(&mut self, name: &str) -> Result<(), BadDomainName> {
        let mut value = Vec::new();
        domain_name::encode(name, &mut value)?;
        self.name = Some(value.into());
        Ok(())
    }

    /// Sets the URLs of the boot files for iPXE clients and for other clients (RFC 5970).
    pub fn set_boot_files(&mut self, ipxe: Option<&[u8]>, other: Option<&[u8]>) {
        self.boot_files = [ipxe.map(Box::from), other.map(Box::from)];
    }

    /// Checks the length of the longest possible answer.
    ///
    /// # Errors
    /// [`TooLong`] if an answer would exceed [`MAX_OPTIONS_LEN`].
    pub fn check(&self) -> Result<(), TooLong> {
        let files = self.boot_files.iter().flatten().map(|file| file.len()).max();
        let values = self.options.iter().map(|(_, value)| value.len());
        let values = values.chain(files).chain(self.name.iter().map(|name| name.len() + 1));
        let len = values.fold(0, |sum, len| sum + len + 4);
        if len > MAX_OPTIONS_LEN { Err(TooLong(len)) } else { Ok(()) }
    }

    /// The UDP payload that answers a message of a client. `None` for an invalid message, and for a
    /// message to another server.
    pub fn answer(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let request = Request::parse(payload)?;
        if request.server_id.is_some_and(|id| id != self.duid()) {
            return None;
        }
        let is_about_addresses = match request.kind {
            message::SOLICIT
            | message::REQUEST
            | message::CONFIRM
            | message::RENEW
            | message::REBIND => true,
            message::RELEASE | message::DECLINE | message::INFORMATION_REQUEST => false,
            _ => return None,
        };
        if is_about_addresses && request.iaid.is_none() {
            return None;
        }
        let is_solicit = request.kind == message::SOLICIT;
        let mut out = Vec::with_capacity(MAX_OPTIONS_LEN + 256);
        out.push(if is_solicit { message::ADVERTISE } else { message::REPLY });
        out.extend(request.transaction);
        put(&mut out, code::CLIENT_ID, request.client_id);
        put(&mut out, code::SERVER_ID, &self.duid());
        if matches!(request.kind, message::RELEASE | message::DECLINE) {
            // RFC 8415 sections 18.3.7 and 18.3.8: success.
            put(&mut out, code::STATUS, &[0, 0]);
            return Some(out);
        }
        if let (Some(iaid), Some(address), true) = (request.iaid, self.address, is_about_addresses)
        {
            put(&mut out, code::IA_NA, &identity_association(iaid, address));
        }
        for (code, value) in &self.options {
            put(&mut out, *code, value);
        }
        let [ipxe, other] = &self.boot_files;
        if let Some(file) = if request.is_ipxe { ipxe } else { other } {
            put(&mut out, code::BOOT_FILE_URL, file);
        }
        if let (Some(requested_flags), Some(name)) = (request.name_flags, &self.name) {
            let overridden = if requested_flags & fqdn::S != 0 { fqdn::O } else { 0 };
            put(&mut out, code::FQDN, &[&[fqdn::N | overridden], &**name].concat());
        }
        Some(out)
    }

    /// The identifier of the server: a DUID of type 3, from a link-layer address (RFC 8415 section
    /// 11.4).
    fn duid(&self) -> [u8; 10] {
        let [a, b, c, d, e, f] = self.mac.0;
        [0, 3, 0, 1, a, b, c, d, e, f]
    }
}

/// An identity association (IA_NA) with one address (RFC 8415 sections 21.4 and 21.6).
fn identity_association(iaid: [u8; 4], address: Ipv6Addr) -> Vec<u8> {
    let mut value = [iaid, INFINITY, INFINITY].concat();
    put(&mut value, code::IA_ADDR, &[&address.octets()[..], &INFINITY, &INFINITY].concat());
    value
}

/// Appends an option.
fn put(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_be_bytes());
    // The cast is lossless: values are shorter than an answer.
    out.extend((value.len() as u16).to_be_bytes());
    out.extend(value);
}

/// A valid message of a client.
struct Request<'a> {
    kind: u8,
    transaction: [u8; 3],
    client_id: &'a [u8],
    server_id: Option<&'a [u8]>,
    /// The identifier of the first identity association.
    iaid: Option<[u8; 4]>,
    is_ipxe: bool,
    /// The flags of the option with the client's name.
    name_flags: Option<u8>,
}

impl<'a> Request<'a> {
    fn parse(payload: &'a [u8]) -> Option<Self> {
        let (&[kind, a, b, c], options) = payload.split_first_chunk::<4>()?;
        let mut client_id = None;
        let (mut server_id, mut iaid, mut is_ipxe, mut name_flags) = (None, None, false, None);
        for option in Options(options) {
            match option? {
                (code::CLIENT_ID, id) => client_id = Some(id),
                (code::SERVER_ID, id) => server_id = Some(id),
                (code::IA_NA, value) => {
                    let (id, _) = value.split_first_chunk::<4>().filter(|_| value.len() >= 12)?;
                    iaid = iaid.or(Some(*id));
                }
                // The user class data begins with a length of two bytes.
                (code::USER_CLASS, value) => {
                    is_ipxe |= value.get(2..).is_some_and(|class| class.starts_with(b"iPXE"));
                }
                (code::FQDN, value) => name_flags = Some(*value.first()?),
                _ => {}
            }
        }
        // RFC 8415 section 16 permits an INFORMATION-REQUEST without a client identifier. It is
        // ignored, as in OVN.
        let client_id = client_id.filter(|id| id.len() <= MAX_CLIENT_ID_LEN)?;
        let transaction = [a, b, c];
        Some(Self { kind, transaction, client_id, server_id, iaid, is_ipxe, name_flags })
    }
}

/// The options of a message. A truncated option yields `None` and ends the iteration.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Option<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.0);
        if rest.is_empty() {
            return None;
        }
        let Some((&[a, b, c, d], rest)) = rest.split_first_chunk::<4>() else {
            return Some(None);
        };
        let Some((value, rest)) = rest.split_at_checked(u16::from_be_bytes([c, d]).into()) else {
            return Some(None);
        };
        self.0 = rest;
        Some(Some((u16::from_be_bytes([a, b]), value)))
    }
}

#[cfg(test)]
mod tests;
