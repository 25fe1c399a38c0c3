//! Frames built field by field, without the code under test.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use packet::{Checksum, Gso, GsoKind, PacketBuf};
use wire::MacAddr;

/// Timeout for all operations.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Calls `receive` until it returns a value, for at most [`TIMEOUT`].
///
/// Tests need it also after they close a descriptor. When another test starts a process, the child
/// has a copy of every descriptor until it executes its program.
pub fn wait_for<T>(what: &str, mut receive: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(got) = receive() {
            return got;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// True when `fd` becomes readable, or reports an error, within `timeout_ms`.
pub fn is_readable(fd: impl AsFd, timeout_ms: u16) -> bool {
    let mut fds = [nix::poll::PollFd::new(fd.as_fd(), nix::poll::PollFlags::POLLIN)];
    let ready = nix::poll::poll(&mut fds, timeout_ms).expect("poll works");
    assert!(fd.as_fd().as_raw_fd() >= 0);
    ready > 0
}

/// An Ethernet header with VLAN tags.
pub fn ethernet(dst: MacAddr, src: MacAddr, tags: &[(u16, u16)], ethertype: u16) -> Vec<u8> {
    let mut bytes = [dst.0, src.0].concat();
    for (tpid, tci) in tags {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend(tci.to_be_bytes());
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes
}

/// An IP header without options, for `len` bytes of payload.
pub fn ip(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> Vec<u8> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            bytes[2..4].copy_from_slice(&(20 + len as u16).to_be_bytes());
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            let sum = fold(sum(&bytes, 0));
            bytes[10..12].copy_from_slice(&(!sum).to_be_bytes());
            bytes
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut bytes = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            bytes[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            bytes
        }
        _ => panic!("two families in one header"),
    }
}

/// The pseudo-header sum of a transport segment of `len` bytes.
pub fn pseudo_header_sum(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u32 {
    let addresses = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => [src.octets(), dst.octets()].concat(),
        (IpAddr::V6(src), IpAddr::V6(dst)) => [src.octets(), dst.octets()].concat(),
        _ => panic!("two families in one header"),
    };
    sum(&addresses, u32::from(protocol) + len as u32)
}

pub fn sum(bytes: &[u8], start: u32) -> u32 {
    bytes.chunks(2).fold(start, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
    })
}

pub fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// A TCP segment whose checksum field holds only the pseudo-header sum.
pub fn tcp(src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = pseudo_header_sum(src.ip(), dst.ip(), 6, 20 + payload.len());
    bytes[16..18].copy_from_slice(&fold(sum).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A TCP super-packet with segments of `mss` bytes; with `None`, a frame with a partial checksum.
pub fn tcp_frame(
    macs: (MacAddr, MacAddr),
    tags: &[(u16, u16)],
    (src, dst): (SocketAddr, SocketAddr),
    payload: &[u8],
    mss: Option<u16>,
) -> PacketBuf {
    let segment = tcp(src, dst, payload);
    let ethertype = if src.is_ipv4() { 0x0800 } else { 0x86dd };
    let mut bytes = ethernet(macs.1, macs.0, tags, ethertype);
    bytes.extend(ip(src.ip(), dst.ip(), 6, segment.len()));
    let start = bytes.len() as u16;
    bytes.extend(segment);
    let mut packet = PacketBuf::from_bytes(&bytes);
    packet.offload.checksum = Checksum::Partial { start, offset: 16 };
    let kind = if src.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    packet.offload.gso = mss.map(|size| Gso { kind, size, ecn: false });
    packet
}

/// A byte pattern in which a shift or a swap of bytes shows.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

pub fn big_packet() -> PacketBuf {
    PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME)
}
