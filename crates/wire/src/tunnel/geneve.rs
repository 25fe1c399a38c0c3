//! Geneve (RFC 8926 section 3.4) and its options (section 3.5).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---+-----------+-+-+-----------+-------------------------------+
//! |Ver|  Opt Len  |O|C|    Rsvd.  |          Protocol Type        |
//! +---+-----------+-+-+-----------+---------------+---------------+
//! |        Virtual Network Identifier (VNI)       |    Reserved   |
//! +-----------------------------------------------+---------------+
//! |                  Options, 0 to 252 bytes                      |
//! +---------------------------------------------------------------+
//!
//! one option:
//! +-------------------------------+---------------+-----+---------+
//! |          Option Class         |C|    Type     |R|R|R| Length  |
//! +-------------------------------+---------------+-----+---------+
//! |                   Data, 0 to 124 bytes                        |
//! +---------------------------------------------------------------+
//! ```
//!
//! Lengths are in units of 4 bytes. Options are accepted in any order. An unknown option is ignored
//! unless the highest bit of its type marks it critical. Then the packet must be dropped, even when
//! the C bit of the header is clear.

use crate::ethernet::EtherType;
use crate::view::{array, put, put_u16, put_u32, require, u16_at, view};
use crate::{Layer, ParseError, ParseErrorKind, Vni};

/// Bytes of the header without options.
pub const HEADER_LEN: usize = 8;
/// Bytes of the longest options.
pub const MAX_OPTIONS_LEN: usize = 252;
/// Bytes of the longest data of one option.
pub const MAX_OPTION_DATA_LEN: usize = 124;
/// The UDP destination port.
pub const PORT: u16 = 6081;
/// The option class of OVN.
pub const CLASS_OVN: u16 = 0x0102;
/// The type of OVN's logical-port option; critical.
pub const TYPE_LOGICAL_PORTS: u8 = 0x80;

/// Bytes of that option with its header.
pub const LOGICAL_PORTS_OPTION_LEN: usize = OPTION_HEADER_LEN + 4;

const OPTION_HEADER_LEN: usize = 4;
const CRITICAL_TYPE: u8 = 0x80;
const CONTROL: u8 = 0x80;
const CRITICAL: u8 = 0x40;

view! {
    /// A view of the payload of a UDP datagram to port 6081. Checked views have well-formed
    /// options.
    GenevePacket
}

impl<T: AsRef<[u8]>> GenevePacket<T> {
    fn check(&self) -> Result<(), ParseError> {
        let bytes = self.bytes();
        require(Layer::Geneve, HEADER_LEN, bytes.len())?;
        let version = bytes[0] >> 6;
        if version != 0 {
            return Err(ParseError {
                layer: Layer::Geneve,
                kind: ParseErrorKind::BadVersion(version),
            });
        }
        let header_len = self.header_len();
        require(Layer::Geneve, header_len, bytes.len())?;
        GeneveOptions::new(&bytes[HEADER_LEN..header_len]).map(|_| ())
    }

    /// Bytes of the header, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + usize::from(self.bytes()[0] & 0x3f) * 4
    }

    /// The O bit: a control packet between end points, which must never reach a guest.
    #[inline]
    pub fn is_control(&self) -> bool {
        self.bytes()[1] & CONTROL != 0
    }

    /// The C bit: the sender declares that a critical option is present.
    pub fn has_critical(&self) -> bool {
        self.bytes()[1] & CRITICAL != 0
    }

    /// EtherType of the payload; [`EtherType::TEB`] for Ethernet.
    #[inline]
    pub fn protocol(&self) -> EtherType {
        EtherType(u16_at(self.bytes(), 2))
    }

    /// The network identifier.
    #[inline]
    pub fn vni(&self) -> Vni {
        Vni::from_be_bytes(array(self.bytes(), 4))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> GenevePacket<&'a T> {
    /// The options.
    #[inline]
    pub fn options(&self) -> GeneveOptions<'a> {
        GeneveOptions(&self.buffer.as_ref()[HEADER_LEN..self.header_len()])
    }

    /// The bytes after the options.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[self.header_len()..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> GenevePacket<T> {
    /// Sets the network identifier, and the reserved byte after it to 0.
    #[inline]
    pub fn set_vni(&mut self, vni: Vni) {
        put_u32(self.buffer.as_mut(), 4, vni.value() << 8);
    }

    /// Writes OVN's option for logical ports as the only option of a data packet.
    ///
    /// # Panics
    /// When the buffer is shorter than [`HEADER_LEN`] + [`LOGICAL_PORTS_OPTION_LEN`].
    #[inline]
    pub fn set_logical_ports_option(&mut self, ports: LogicalPorts) {
        let bytes = self.buffer.as_mut();
        put(bytes, 0, [(LOGICAL_PORTS_OPTION_LEN / 4) as u8, CRITICAL]);
        put_u16(bytes, HEADER_LEN, CLASS_OVN);
        put(bytes, HEADER_LEN + 2, [TYPE_LOGICAL_PORTS, 1]);
        put(bytes, HEADER_LEN + OPTION_HEADER_LEN, ports.to_bytes());
    }
}

const fn bad_length(len: usize) -> ParseError {
    ParseError { layer: Layer::Geneve, kind: ParseErrorKind::BadLength(len) }
}

/// The logical ports of a packet, as OVN's option carries them.
///
/// ```text
/// +-+-----------------------------+-------------------------------+
/// |R|  ingress port (15 bits)     |      egress port (16 bits)    |
/// +-+-----------------------------+-------------------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LogicalPorts {
    /// Key of the ingress logical port, 15 bits; higher bits are cut off.
    pub ingress: u16,
    /// Key of the egress logical port or multicast group.
    pub egress: u16,
}

impl LogicalPorts {
    /// The highest ingress key.
    pub const MAX_INGRESS: u16 = 0x7fff;

    /// Encodes the option's data as a number.
    #[inline]
    pub const fn value(self) -> u32 {
        ((self.ingress & Self::MAX_INGRESS) as u32) << 16 | self.egress as u32
    }

    /// Decodes the option's data; the reserved bit is ignored.
    #[inline]
    pub const fn from_value(value: u32) -> Self {
        Self { ingress: (value >> 16) as u16 & Self::MAX_INGRESS, egress: value as u16 }
    }

    /// Encodes the option's four bytes of data.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 4] {
        self.value().to_be_bytes()
    }

    /// Decodes the option's four bytes of data.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 4]) -> Self {
        Self::from_value(u32::from_be_bytes(bytes))
    }
}

/// One Geneve option.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GeneveOption<'a> {
    /// OVN's logical ports: class 0x0102, type 0x80, 4 bytes.
    LogicalPorts(LogicalPorts),
    /// Any other option, unchanged.
    Unknown {
        /// Option class (IANA "Geneve Option Class").
        class: u16,
        /// Option type, the critical bit included.
        kind: u8,
        /// Data, 0 to 124 bytes, a multiple of 4.
        data: &'a [u8],
    },
}

impl GeneveOption<'_> {
    /// True when a receiver that does not know the option must drop the packet.
    pub const fn is_critical(&self) -> bool {
        match self {
            Self::LogicalPorts(_) => true,
            Self::Unknown { kind, .. } => *kind & CRITICAL_TYPE != 0,
        }
    }

    /// Bytes of the encoded option.
    pub const fn wire_len(&self) -> usize {
        OPTION_HEADER_LEN
            + match self {
                Self::LogicalPorts(_) => 4,
                Self::Unknown { data, .. } => data.len(),
            }
    }

    /// Writes the option; `out` must be `wire_len` bytes long.
    fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        let ports;
        let (class, kind, data) = match *self {
            Self::LogicalPorts(value) => {
                ports = value.to_bytes();
                (CLASS_OVN, TYPE_LOGICAL_PORTS, &ports[..])
            }
            Self::Unknown { class, kind, data } => (class, kind, data),
        };
        if data.len() > MAX_OPTION_DATA_LEN || !data.len().is_multiple_of(4) {
            return Err(bad_length(data.len()));
        }
        put_u16(out, 0, class);
        out[2] = kind;
        out[3] = (data.len() / 4) as u8;
        out[OPTION_HEADER_LEN..].copy_from_slice(data);
        Ok(())
    }
}

/// The options of a Geneve header: well-formed, 0 to 252 bytes, a multiple of 4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct GeneveOptions<'a>(&'a [u8]);

impl<'a> GeneveOptions<'a> {
    /// Validates option bytes.
    ///
    /// # Errors
    /// `BadLength` in three cases: a total over 252 or not a multiple of 4; an option that reaches
    /// beyond the end; a known option whose data has the wrong length.
    pub fn new(bytes: &'a [u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_OPTIONS_LEN || !bytes.len().is_multiple_of(4) {
            return Err(bad_length(bytes.len()));
        }
        let mut rest = bytes;
        while let Some((_, after)) = next_option(rest)? {
            rest = after;
        }
        Ok(Self(bytes))
    }

    /// Writes `options` into `scratch`, in the order given.
    ///
    /// # Errors
    /// `BadLength` when the options take more than 252 bytes, or when the data of one option is
    /// longer than 124 bytes or not a multiple of 4.
    pub fn write(
        options: &[GeneveOption<'_>],
        scratch: &'a mut [u8; MAX_OPTIONS_LEN],
    ) -> Result<Self, ParseError> {
        let mut at = 0;
        for option in options {
            let end = at + option.wire_len();
            option.emit(scratch.get_mut(at..end).ok_or(bad_length(end))?)?;
            at = end;
        }
        Self::new(&scratch[..at])
    }

    /// The options in order.
    pub fn iter(&self) -> impl Iterator<Item = GeneveOption<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (option, after) = next_option(rest).ok()??;
            rest = after;
            Some(option)
        })
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// True when an option is critical, known or not.
    pub fn has_critical(&self) -> bool {
        self.iter().any(|option| option.is_critical())
    }

    /// The logical ports, if they are among the options.
    #[inline]
    pub fn logical_ports(&self) -> Option<LogicalPorts> {
        self.iter().find_map(|option| match option {
            GeneveOption::LogicalPorts(ports) => Some(ports),
            GeneveOption::Unknown { .. } => None,
        })
    }

    /// Rejects options that a receiver must not accept.
    fn check_acceptable(&self) -> Result<(), ParseError> {
        let mut seen_ports = false;
        for option in self.iter() {
            match option {
                GeneveOption::LogicalPorts(_) if seen_ports => {
                    return Err(ParseError::field(Layer::Geneve, "repeated logical-port option"));
                }
                GeneveOption::LogicalPorts(_) => seen_ports = true,
                GeneveOption::Unknown { class, kind, .. } if option.is_critical() => {
                    let kind = ParseErrorKind::UnknownCriticalOption { class, kind };
                    return Err(ParseError { layer: Layer::Geneve, kind });
                }
                GeneveOption::Unknown { .. } => {}
            }
        }
        Ok(())
    }
}

/// Removes the first option from `bytes` and returns it; `None` at the end.
fn next_option(bytes: &[u8]) -> Result<Option<(GeneveOption<'_>, &[u8])>, ParseError> {
    let [class_high, class_low, kind, length, rest @ ..] = bytes else {
        return if bytes.is_empty() { Ok(None) } else { Err(bad_length(bytes.len())) };
    };
    let class = u16::from_be_bytes([*class_high, *class_low]);
    let len = usize::from(length & 0x1f) * 4;
    let (data, rest) = rest.split_at_checked(len).ok_or(bad_length(OPTION_HEADER_LEN + len))?;
    let option = match (class, *kind) {
        (CLASS_OVN, TYPE_LOGICAL_PORTS) => {
            let data = data.try_into().map_err(|_| bad_length(OPTION_HEADER_LEN + len))?;
            GeneveOption::LogicalPorts(LogicalPorts::from_bytes(data))
        }
        (class, kind) => GeneveOption::Unknown { class, kind, data },
    };
    Ok(Some((option, rest)))
}

/// A Geneve header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GeneveRepr<'a> {
    /// The O bit: a control packet between end points, which must never reach a guest.
    pub control: bool,
    /// EtherType of the payload; [`EtherType::TEB`] for Ethernet.
    pub protocol: EtherType,
    /// The network identifier.
    pub vni: Vni,
    /// Options.
    pub options: GeneveOptions<'a>,
}

impl<'a> GeneveRepr<'a> {
    /// Reads a checked view. Reserved bits and unknown options that are not critical are ignored;
    /// those options remain in `options`.
    ///
    /// # Errors
    /// `UnknownCriticalOption` for an unknown critical option. `BadField` when the logical-port
    /// option is repeated, because the two could name different ports.
    pub fn parse<T: AsRef<[u8]> + ?Sized>(
        packet: &GenevePacket<&'a T>,
    ) -> Result<Self, ParseError> {
        let options = packet.options();
        options.check_acceptable()?;
        Ok(Self {
            control: packet.is_control(),
            protocol: packet.protocol(),
            vni: packet.vni(),
            options,
        })
    }

    /// Bytes that [`GeneveRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        HEADER_LEN + self.options.0.len()
    }

    /// Writes the header; the C bit is set when an option is critical.
    ///
    /// # Panics
    /// When the buffer is shorter than [`GeneveRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut GenevePacket<T>) {
        let header_len = self.header_len();
        let bytes = packet.buffer.as_mut();
        bytes[0] = (self.options.0.len() / 4) as u8;
        bytes[1] = if self.control { CONTROL } else { 0 }
            | if self.options.has_critical() { CRITICAL } else { 0 };
        put_u16(bytes, 2, self.protocol.0);
        bytes[HEADER_LEN..header_len].copy_from_slice(self.options.0);
        packet.set_vni(self.vni);
    }
}
