//! VXLAN (RFC 7348 section 5).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-----------------------------------------------+
//! |R|R|R|R|I|R|R|R|            Reserved                           |
//! +-+-+-+-+-+-+-+-+-------------------------------+---------------+
//! |                VXLAN Network Identifier       |   Reserved    |
//! +-----------------------------------------------+---------------+
//! ```
//!
//! The I flag must be set. Reserved bits are zero when sent and ignored when received.

use crate::view::{array, put, put_u32, require, view};
use crate::{Layer, ParseError, Vni};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The UDP destination port.
pub const PORT: u16 = 4789;

const VNI_VALID: u8 = 0x08;

view! {
    /// A view of the payload of a UDP datagram to port 4789.
    VxlanPacket
}

impl<T: AsRef<[u8]>> VxlanPacket<T> {
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        require(Layer::Vxlan, HEADER_LEN, self.bytes().len())
    }

    /// The I flag: the VNI is valid.
    #[inline]
    pub fn is_vni_valid(&self) -> bool {
        self.bytes()[0] & VNI_VALID != 0
    }

    /// The network identifier.
    #[inline]
    pub fn vni(&self) -> Vni {
        Vni::from_be_bytes(array(self.bytes(), 4))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> VxlanPacket<&'a T> {
    /// The inner Ethernet frame.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> VxlanPacket<T> {
    /// Sets the network identifier, and the reserved byte after it to 0.
    #[inline]
    pub fn set_vni(&mut self, vni: Vni) {
        put_u32(self.buffer.as_mut(), 4, vni.value() << 8);
    }
}

/// A VXLAN header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VxlanRepr {
    /// The network identifier.
    pub vni: Vni,
}

impl VxlanRepr {
    /// Reads a checked view; reserved bits are ignored.
    ///
    /// # Errors
    /// `BadField` when the I flag is not set.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(packet: &VxlanPacket<T>) -> Result<Self, ParseError> {
        if packet.is_vni_valid() {
            Ok(Self { vni: packet.vni() })
        } else {
            Err(ParseError::field(Layer::Vxlan, "I flag"))
        }
    }

    /// Bytes that [`VxlanRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header.
    ///
    /// # Panics
    /// When the buffer is shorter than [`VxlanRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut VxlanPacket<T>) {
        put(packet.buffer.as_mut(), 0, [VNI_VALID, 0, 0, 0]);
        packet.set_vni(self.vni);
    }
}
