//! [`Remote`]: the address of a server (ovsdb(7), "Connection Methods").

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Remote {
    /// `unix:PATH`: a Unix socket.
    Unix(PathBuf),
    /// `tcp:IP[:PORT]`: TCP.
    Tcp(SocketAddr),
    /// `ssl:IP[:PORT]`: TLS over TCP.
    Ssl(SocketAddr),
}

/// The text is not a remote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{text}` is no remote: expected unix:PATH, tcp:IP[:PORT] or ssl:IP[:PORT], with an IPv6 \
         address in brackets"
)]
pub struct RemoteError {
    text: String,
}

impl Remote {
    /// The port if none is given.
    pub const DEFAULT_PORT: u16 = 6640;

    /// Parses a comma-separated list.
    ///
    /// # Errors
    /// [`RemoteError`] for the first text that is not a remote, or an empty list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, RemoteError> {
        text.split(',').map(|part| part.trim().parse()).collect()
    }
}

impl FromStr for Remote {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let remote = match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Some(Self::Unix(path.into())),
            Some(("tcp", address)) => socket_address(address).map(Self::Tcp),
            Some(("ssl", address)) => socket_address(address).map(Self::Ssl),
            _ => None,
        };
        remote.ok_or_else(|| RemoteError { text: text.to_owned() })
    }
}

/// `IP`, `IP:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn socket_address(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let ip: IpAddr = match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(text) => text.parse::<Ipv6Addr>().ok()?.into(),
        None => text.parse().ok()?,
    };
    Some(SocketAddr::new(ip, Remote::DEFAULT_PORT))
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Ssl(address) => write!(f, "ssl:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_printed_as_they_were_parsed() {
        for text in ["unix:/run/db.sock", "tcp:127.0.0.1:6641", "ssl:[::1]:6642"] {
            assert_eq!(text.parse::<Remote>().unwrap().to_string(), text);
        }
        assert_eq!("tcp:10.0.0.1".parse::<Remote>().unwrap().to_string(), "tcp:10.0.0.1:6640");
        assert_eq!("ssl:[fe80::1]".parse::<Remote>().unwrap().to_string(), "ssl:[fe80::1]:6640");
        assert_eq!(Remote::parse_list("tcp:10.0.0.1:1, unix:/a").unwrap().len(), 2);
    }

    #[test]
    fn text_is_refused_when_it_is_no_remote() {
        for text in ["", "unix:", "tcp:", "tcp:host:1", "udp:1.2.3.4:1", "ssl:1.2.3.4:99999"] {
            assert!(text.parse::<Remote>().is_err(), "{text}");
        }
        assert!(Remote::parse_list("tcp:10.0.0.1,").is_err());
    }
}
