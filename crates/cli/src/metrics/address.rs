//! [`MetricsAddress`]: the address at which metrics are served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A value of `--metrics`: `ADDRESS:PORT` or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsAddress {
    /// An address of this host, and a TCP port.
    Tcp(SocketAddr),
    /// The path of a Unix stream socket.
    Unix(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("there is no path behind `unix:`: write unix:/run/weft/metrics".into()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            "write ADDRESS:PORT, such as 127.0.0.1:9478 or [::1]:9478, or unix:PATH".to_owned()
        })
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["127.0.0.1:9478", "[::1]:9478", "0.0.0.0:1", "unix:/run/weft/metrics"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        for text in ["", "9478", ":9478", "localhost:9478", "127.0.0.1", "::1:9478", "/run/x"] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert!(error.contains("ADDRESS:PORT"), "{text}: {error}");
        }
        assert!("unix:".parse::<MetricsAddress>().unwrap_err().contains("no path"));
    }
}
