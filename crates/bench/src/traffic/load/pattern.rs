//! The parameters of a load: a pattern, a message size, a number of connections and a rate.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The largest number of connections of a load.
pub const MAX_CONNECTIONS: usize = 640;
/// The longest message, in bytes.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The shortest message over UDP, in bytes: it contains a sequence number.
pub const MIN_DATAGRAM: usize = 16;
/// The longest message over UDP over IPv4, in bytes (RFC 791, RFC 768).
pub const MAX_DATAGRAM: usize = 65_507;

/// The direction of traffic, and whether it consists of streams, transactions or datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pattern {
    /// The client writes as fast as TCP lets it.
    TcpStream,
    /// The server writes as fast as TCP lets it.
    TcpReverse,
    /// Both write on the same connection.
    TcpBidirectional,
    /// The client sends a request and waits for a response of the same size.
    TcpRr,
    /// Like [`Pattern::TcpRr`], with a new connection for each transaction.
    TcpCrr,
    /// Like [`Pattern::TcpRr`], over UDP.
    UdpRr,
    /// The client sends messages, each in a datagram, without waiting for responses.
    UdpStream,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::TcpStream,
        Self::TcpReverse,
        Self::TcpBidirectional,
        Self::TcpRr,
        Self::TcpCrr,
        Self::UdpRr,
        Self::UdpStream,
    ];

    /// Its name in scenarios, on the command line, and between client and server.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TcpStream => "tcp_stream",
            Self::TcpReverse => "tcp_reverse",
            Self::TcpBidirectional => "tcp_bidirec",
            Self::TcpRr => "tcp_rr",
            Self::TcpCrr => "tcp_crr",
            Self::UdpRr => "udp_rr",
            Self::UdpStream => "udp_stream",
        }
    }

    /// True when the pattern measures transactions instead of bytes.
    pub const fn is_transactions(self) -> bool {
        matches!(self, Self::TcpRr | Self::TcpCrr | Self::UdpRr)
    }

    /// True when messages are datagrams.
    pub const fn is_udp(self) -> bool {
        matches!(self, Self::UdpRr | Self::UdpStream)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::Other(format!("unknown traffic pattern {text:?}; expected one of {names}"))
        })
    }
}

/// A pattern with its parameters. Always valid.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    pattern: Pattern,
    size_bytes: usize,
    connections: usize,
    rate_bps: Option<f64>,
}

impl Load {
    /// A load of `connections` connections (1 to [`MAX_CONNECTIONS`]) with messages of
    /// `size_bytes`.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn new(pattern: Pattern, size_bytes: usize, connections: usize) -> Result<Self> {
        let (least, most) =
            if pattern.is_udp() { (MIN_DATAGRAM, MAX_DATAGRAM) } else { (1, MAX_MESSAGE) };
        if !(least..=most).contains(&size_bytes) {
            let text =
                format!("{pattern} takes messages of {least} to {most} bytes, not {size_bytes}");
            return Err(Error::Other(text));
        }
        if !(1..=MAX_CONNECTIONS).contains(&connections) {
            let text = format!("a load has 1 to {MAX_CONNECTIONS} connections, not {connections}");
            return Err(Error::Other(text));
        }
        Ok(Self { pattern, size_bytes, connections, rate_bps: None })
    }

    /// The same load at a fixed payload rate over all connections, in bits per second. The sender
    /// limits itself to that rate.
    ///
    /// # Errors
    /// The rate is below 1000 bit/s, or the pattern consists of transactions, whose rate is
    /// measured.
    pub fn at_rate(self, rate_bps: f64) -> Result<Self> {
        if self.pattern.is_transactions() {
            return Err(Error::Other(format!("{} has no fixed rate", self.pattern)));
        }
        if !(rate_bps.is_finite() && rate_bps >= 1000.0) {
            return Err(Error::Other("a fixed rate is 1000 bit/s or more".into()));
        }
        Ok(Self { rate_bps: Some(rate_bps), ..self })
    }

    /// The pattern.
    pub const fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// Bytes of a message: of a write, of a request and its response, or of a datagram's payload.
    pub const fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The number of concurrent connections.
    pub const fn connections(&self) -> usize {
        self.connections
    }

    /// The fixed rate of each connection, in bits per second.
    pub fn rate_of_each_bps(&self) -> Option<f64> {
        self.rate_bps.map(|all| all / self.connections as f64)
    }
}

impl fmt::Display for Load {
    /// The name that the studies use, such as `tcp_rr-1024B-64i`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}B-{}i", self.pattern, self.size_bytes, self.connections)?;
        self.rate_bps.map_or(Ok(()), |rate| write!(f, "-{:.0}M", rate / 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_named_as_in_the_studies() {
        let load = Load::new(Pattern::TcpRr, 1024, 64).unwrap();
        assert_eq!(load.to_string(), "tcp_rr-1024B-64i");
        let load = Load::new(Pattern::TcpStream, 32768, 640).unwrap().at_rate(2e10).unwrap();
        assert_eq!(load.to_string(), "tcp_stream-32768B-640i-20000M");
        assert_eq!(load.rate_of_each_bps(), Some(31_250_000.0));
    }

    #[test]
    fn load_is_refused_when_a_number_is_out_of_range() {
        let refused = |pattern, size, connections| {
            Load::new(pattern, size, connections).map_err(|error| error.to_string()).unwrap_err()
        };
        assert!(refused(Pattern::TcpRr, 0, 1).contains("1 to 1048576"));
        assert!(refused(Pattern::UdpRr, 8, 1).contains("16 to 65507"));
        assert!(refused(Pattern::TcpRr, 1, 641).contains("1 to 640"));
        let rr = Load::new(Pattern::TcpRr, 1, 1).unwrap();
        assert!(rr.at_rate(1e6).is_err());
        let stream = Load::new(Pattern::TcpStream, 1, 1).unwrap();
        assert!(stream.at_rate(f64::NAN).is_err() && stream.at_rate(0.0).is_err());
    }

    #[test]
    fn unknown_pattern_names_the_valid_ones() {
        let error = "tcp_maerts".parse::<Pattern>().unwrap_err().to_string();
        assert!(error.contains("tcp_stream, tcp_reverse"), "{error}");
        for pattern in Pattern::ALL {
            assert_eq!(pattern.name().parse::<Pattern>().unwrap(), pattern);
        }
    }
}
