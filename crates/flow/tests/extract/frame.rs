//! Frames built from plain bytes. Each bit is marked: a key may depend on it, or must not.

/// The bytes of a frame, and a one for every bit that a key may depend on.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    pub bytes: Vec<u8>,
    pub read: Vec<u8>,
    /// The offset of the end of the last header.
    pub headers: usize,
}

impl Frame {
    /// Appends bytes of which the key may depend on the bits in `read`.
    pub fn bits(mut self, bytes: impl AsRef<[u8]>, read: impl AsRef<[u8]>) -> Self {
        assert_eq!(bytes.as_ref().len(), read.as_ref().len());
        self.bytes.extend(bytes.as_ref());
        self.read.extend(read.as_ref());
        self.headers = self.bytes.len();
        self
    }

    /// Appends bytes that the key may depend on.
    pub fn read(self, bytes: impl AsRef<[u8]>) -> Self {
        let ones = vec![0xff; bytes.as_ref().len()];
        self.bits(bytes, ones)
    }

    /// Appends bytes that the key must not depend on.
    pub fn free(self, bytes: impl AsRef<[u8]>) -> Self {
        let zeros = vec![0; bytes.as_ref().len()];
        self.bits(bytes, zeros)
    }

    /// Appends the next header, with everything after it.
    pub fn then(self, next: Self) -> Self {
        let headers = self.bytes.len() + next.headers;
        Self { headers, ..self.bits(next.bytes, next.read) }
    }

    /// Appends payload.
    pub fn payload(self, bytes: impl AsRef<[u8]>) -> Self {
        let headers = self.headers;
        Self { headers, ..self.free(bytes) }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

pub const DST: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const ARP: u16 = 0x0806;

/// An Ethernet header with tags (TPID and TCI).
pub fn ethernet(tags: &[(u16, u16)], ethertype: u16) -> Frame {
    let frame = Frame::default().read(DST).read(SRC);
    let frame = tags.iter().fold(frame, |frame, (tpid, tci)| {
        frame.read(tpid.to_be_bytes()).bits(tci.to_be_bytes(), [0xef, 0xff])
    });
    frame.read(ethertype.to_be_bytes())
}

/// A frame with tags in which `packet` follows a SNAP header. The IEEE 802.3 length covers `more`
/// bytes after the packet.
pub fn in_snap(tags: &[(u16, u16)], ethertype: u16, packet: Frame, more: usize) -> Frame {
    let length = (8 + packet.len() + more) as u16;
    let header = ethernet(tags, length).read([0xaa, 0xaa, 3, 0, 0, 0]);
    header.read(ethertype.to_be_bytes()).then(packet)
}

/// An IPv4 header before `l4`; `fragment` is the header's flags and offset.
pub fn ipv4(protocol: u8, fragment: u16, options: &[u8], l4: Frame) -> Frame {
    let len = (20 + options.len() + l4.len()) as u16;
    Frame::default()
        .read([0x45 + (options.len() / 4) as u8, 0b1010_1110])
        .read(len.to_be_bytes())
        .free([0x12, 0x34])
        .bits(fragment.to_be_bytes(), [0x3f, 0xff])
        .read([63, protocol])
        .free([0xaa, 0xbb])
        .read([10, 0, 0, 1, 10, 0, 0, 2])
        .free(options)
        .then(l4)
}

pub const SRC6: u128 = 0xfd00_0000_0000_0000_0000_0000_0000_0001;
pub const DST6: u128 = 0xfd00_0000_0000_0000_0000_0000_0000_0002;

/// An IPv6 header before `rest`, with traffic class 0xb9 and flow label 0x54321.
pub fn ipv6(next: u8, hop_limit: u8, rest: Frame) -> Frame {
    Frame::default()
        .read([0x6b, 0x95, 0x43, 0x21])
        .read((rest.len() as u16).to_be_bytes())
        .read([next, hop_limit])
        .read(SRC6.to_be_bytes())
        .read(DST6.to_be_bytes())
        .then(rest)
}

/// An extension header of `kind`: hop-by-hop (0), routing (43), destination options (60),
/// authentication (51), or fragment (44) with an offset of `fragment`.
pub fn extension(kind: u8, next: u8, fragment: u16) -> Frame {
    let header = Frame::default().read([next]);
    match kind {
        44 => header.free([0x55]).bits(fragment.to_be_bytes(), [0xff, 0xf9]).free([9, 8, 7, 6]),
        51 => header.read([4]).free([0x77; 22]),
        _ => header.read([1]).free([0x77; 14]),
    }
}

/// A TCP header with ports 40000 and 443 and 12 bits of flags.
pub fn tcp(flags: u16, options: &[u8]) -> Frame {
    let offset = (5 + options.len() as u16 / 4) << 12;
    Frame::default()
        .read([0x9c, 0x40, 1, 0xbb])
        .free([1, 2, 3, 4, 5, 6, 7, 8])
        .read((offset | flags).to_be_bytes())
        .free([0xff, 0xff, 0xcc, 0xdd, 0, 9])
        .free(options)
}

/// A UDP header for `payload` bytes, with ports 40000 and 53.
pub fn udp(payload: usize) -> Frame {
    let len = (8 + payload) as u16;
    Frame::default().read([0x9c, 0x40, 0, 53]).free(len.to_be_bytes()).free([0xcc, 0xdd])
}

/// An SCTP header with ports 40000 and 5060.
pub fn sctp() -> Frame {
    Frame::default().read([0x9c, 0x40, 0x13, 0xc4]).free([1; 8])
}

/// The eight bytes that ICMP and ICMPv6 have in common.
pub fn icmp(kind: u8, code: u8) -> Frame {
    Frame::default().read([kind, code]).free([0xcc, 0xdd]).free([1, 2, 3, 4])
}

pub const TARGET: u128 = 0xfe80_0000_0000_0000_0000_0000_0000_0099;

/// A neighbour solicitation (135) or advertisement (136) with option bytes.
pub fn neighbour(kind: u8, options: &[u8]) -> Frame {
    icmp(kind, 0).read(TARGET.to_be_bytes()).read(options)
}

/// ARP for IPv4 over Ethernet.
pub fn arp(operation: u16) -> Frame {
    Frame::default()
        .read([0, 1, 8, 0, 6, 4])
        .read(operation.to_be_bytes())
        .read([2, 0, 0, 0, 0, 1, 10, 0, 0, 1])
        .read([2, 0, 0, 0, 0, 9, 10, 0, 0, 9])
}
