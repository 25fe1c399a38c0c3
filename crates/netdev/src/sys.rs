//! System calls of the packet path. Each function wraps one call; only these functions need
//! `unsafe`.
//!
//! Control messages and socket addresses are plain byte arrays, so that only the calls themselves
//! need `unsafe`.

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr};
use packet::PacketBuf;

use crate::batch::MessageBatch;

/// Converts the result of a system call that reports failure as -1.
pub(crate) fn cvt(ret: isize) -> Result<usize, i32> {
    usize::try_from(ret).map_err(|_| errno())
}

/// The error number of the last system call of this thread.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Opens a non-blocking socket that child processes do not inherit.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; a descriptor returned by socket() is ours alone.
    unsafe {
        let fd = libc::socket(domain, kind, protocol);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The columns and rows of a terminal; `None` if the descriptor is not one.
pub(crate) fn window_size(fd: BorrowedFd<'_>) -> Option<(u16, u16)> {
    // SAFETY: all-zero is a valid winsize; the kernel writes one to the pointer.
    let (ret, size) = unsafe {
        let mut size: libc::winsize = mem::zeroed();
        (libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, ptr::from_mut(&mut size)), size)
    };
    (ret == 0).then_some((size.ws_col, size.ws_row))
}

/// Plain data that the kernel may read and write byte by byte.
///
/// # Safety
/// Every bit pattern is a valid value, and there is no padding.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for c_int {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers of equal size, no padding.
unsafe impl Plain for [u32; 9] {}
// SAFETY: two integers of equal size, no padding.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: an int, two u16 and 8 bytes: 16 bytes without padding.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: integers of equal size, no padding.
unsafe impl Plain for [u32; 8] {}
// SAFETY: two addresses of 4 bytes and an int: 12 bytes without padding.
unsafe impl Plain for libc::ip_mreqn {}
// SAFETY: an address of 16 bytes and an unsigned int: 20 bytes without padding.
unsafe impl Plain for libc::ipv6_mreq {}

pub(crate) fn set_option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let ret = unsafe {
        let len = mem::size_of::<T>() as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(&value).cast(), len)
    };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn option<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: all-zero is a valid T (`Plain`).
    let mut value: T = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`; the kernel writes at most `len` bytes, and any
    // bytes are a valid T.
    let ret = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, ptr::from_mut(&mut value).cast(), &mut len)
    };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// A socket address as the kernel lays it out, of any family that this crate uses.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct SockAddr {
    bytes: [u8; 32],
    len: u32,
}

impl SockAddr {
    pub(crate) const EMPTY: Self = Self { bytes: [0; 32], len: 0 };

    /// The address of a link for all protocols (`sockaddr_ll`).
    pub(crate) fn link(ifindex: u32) -> Self {
        let mut addr = Self::link_to_send_by(ifindex);
        addr.bytes[2..4].copy_from_slice(&(libc::ETH_P_ALL as u16).to_be_bytes());
        addr
    }

    /// The address of a link for protocol 0: a socket bound to it receives nothing, and does not
    /// slow down the receive path.
    pub(crate) fn link_to_send_by(ifindex: u32) -> Self {
        let mut addr = Self::EMPTY;
        addr.bytes[0..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
        addr.bytes[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        addr.len = mem::size_of::<libc::sockaddr_ll>() as u32;
        addr
    }

    /// The interface index in a link address.
    pub(crate) fn ifindex(&self) -> i32 {
        i32::from_ne_bytes([self.bytes[4], self.bytes[5], self.bytes[6], self.bytes[7]])
    }

    /// The IP address and port, for an IP address.
    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        match c_int::from(u16::from_ne_bytes([b[0], b[1]])) {
            libc::AF_INET => {
                let ip = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
                Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = b[8..24].try_into().ok()?;
                let scope_id = u32::from_ne_bytes([b[24], b[25], b[26], b[27]]);
                let ip = Ipv6Addr::from(octets);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope_id)))
            }
            _ => None,
        }
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        ptr::from_ref(&self.bytes).cast()
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(ip: SocketAddr) -> Self {
        let mut addr = Self::EMPTY;
        let b = &mut addr.bytes;
        b[2..4].copy_from_slice(&ip.port().to_be_bytes());
        match ip {
            SocketAddr::V4(v4) => {
                b[0..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                b[4..8].copy_from_slice(&v4.ip().octets());
                addr.len = mem::size_of::<libc::sockaddr_in>() as u32;
            }
            SocketAddr::V6(v6) => {
                b[0..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                b[8..24].copy_from_slice(&v6.ip().octets());
                b[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                addr.len = mem::size_of::<libc::sockaddr_in6>() as u32;
            }
        }
        addr
    }
}

/// The address family of `ip`.
pub(crate) fn family(ip: IpAddr) -> c_int {
    if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

pub(crate) fn bind(fd: BorrowedFd<'_>, addr: &SockAddr) -> io::Result<()> {
    // SAFETY: pointer and length describe `addr`.
    let ret = unsafe { libc::bind(fd.as_raw_fd(), addr.as_ptr(), addr.len) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SockAddr> {
    let mut addr = SockAddr::EMPTY;
    addr.len = addr.bytes.len() as u32;
    // SAFETY: the kernel writes at most `len` bytes to the 32 of `bytes`, and the length to `len`.
    let ret = unsafe {
        libc::getsockname(fd.as_raw_fd(), ptr::from_mut(&mut addr.bytes).cast(), &mut addr.len)
    };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(addr) }
}

/// The number of messages that the kernel dropped on this socket, modulo 2^32 (SO_MEMINFO).
pub(crate) fn dropped(fd: BorrowedFd<'_>) -> io::Result<u32> {
    const SO_MEMINFO: c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    let values: [u32; 9] = option(fd, libc::SOL_SOCKET, SO_MEMINFO)?;
    Ok(values[SK_MEMINFO_DROPS])
}

/// Control messages to send or received (`struct cmsghdr` and data, each padded to 8 bytes).
#[repr(C, align(8))]
pub(crate) struct ControlMessages {
    bytes: [u8; 128],
    len: usize,
}

const CMSG_HEADER: usize = mem::size_of::<libc::cmsghdr>();

impl ControlMessages {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 128], len: 0 }
    }

    /// Appends a message. The messages of one packet always fit; one that does not is left out.
    pub(crate) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let len = CMSG_HEADER + data.len();
        if let Some(room) = self.bytes.get_mut(self.len..self.len + len.next_multiple_of(8)) {
            room[0..8].copy_from_slice(&len.to_ne_bytes());
            room[8..12].copy_from_slice(&level.to_ne_bytes());
            room[12..16].copy_from_slice(&kind.to_ne_bytes());
            room[CMSG_HEADER..len].copy_from_slice(data);
            self.len += len.next_multiple_of(8);
        }
    }

    /// The messages as (level, type, data).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
        let mut rest = &self.bytes[..self.len.min(self.bytes.len())];
        std::iter::from_fn(move || {
            let header = rest.get(..CMSG_HEADER)?;
            let len = usize::from_ne_bytes(header[0..8].try_into().ok()?);
            let level = c_int::from_ne_bytes(header[8..12].try_into().ok()?);
            let kind = c_int::from_ne_bytes(header[12..16].try_into().ok()?);
            let data = rest.get(CMSG_HEADER..len)?;
            rest = rest.get(len.next_multiple_of(8)..).unwrap_or(&[]);
            Some((level, kind, data))
        })
    }
}

/// Control messages that set TOS or traffic class, and TTL or hop limit unless it is `None`.
pub(crate) fn header_control(v4: bool, tos: u8, ttl: Option<u8>) -> ControlMessages {
    let mut control = ControlMessages::new();
    let (level, tos_name, ttl_name) = if v4 {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
    };
    if tos != 0 {
        control.push(level, tos_name, &c_int::from(tos).to_ne_bytes());
    }
    if let Some(hops) = ttl {
        control.push(level, ttl_name, &c_int::from(hops).to_ne_bytes());
    }
    control
}

/// The integer in a control message of 1 or 4 bytes: IPv4 and IPv6 use different sizes.
pub(crate) fn control_int(data: &[u8]) -> Option<u32> {
    match *data {
        [byte] => Some(u32::from(byte)),
        [a, b, c, d, ..] => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

/// A zeroed `msghdr`.
pub(crate) fn empty_msghdr() -> msghdr {
    // SAFETY: a msghdr is integers and pointers; all zero means none of each.
    unsafe { mem::zeroed() }
}

/// The result of [`recvmsg`].
pub(crate) struct Received {
    /// Length of the message; with MSG_TRUNC it may exceed the buffer.
    pub(crate) len: usize,
    /// `msg_flags`.
    pub(crate) flags: c_int,
}

/// Receives one message into `parts`, in order; `None` when there is none.
pub(crate) fn recvmsg(
    fd: BorrowedFd<'_>,
    parts: &mut [io::IoSliceMut<'_>],
    mut from: Option<&mut SockAddr>,
    control: &mut ControlMessages,
) -> Result<Option<Received>, i32> {
    let mut msg = empty_msghdr();
    if let Some(addr) = &mut from {
        msg.msg_name = addr.bytes.as_mut_ptr().cast();
        msg.msg_namelen = addr.bytes.len() as u32;
    }
    msg.msg_iov = parts.as_mut_ptr().cast::<iovec>();
    msg.msg_iovlen = parts.len();
    msg.msg_control = control.bytes.as_mut_ptr().cast::<c_void>();
    msg.msg_controllen = control.bytes.len();
    // SAFETY: name, iovecs (IoSliceMut has the layout of iovec) and control describe memory that is
    // exclusively borrowed during the call, with its true lengths.
    let ret = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut msg, libc::MSG_TRUNC) };
    match cvt(ret) {
        Ok(len) => {
            control.len = msg.msg_controllen;
            if let Some(addr) = from {
                addr.len = msg.msg_namelen;
            }
            Ok(Some(Received { len, flags: msg.msg_flags }))
        }
        Err(libc::EAGAIN | libc::EINTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sends one message; returns the number of bytes sent.
pub(crate) fn sendmsg(
    fd: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    to: Option<&SockAddr>,
    control: Option<&ControlMessages>,
) -> Result<usize, i32> {
    let mut msg = empty_msghdr();
    fill_msghdr(&mut msg, parts, to, control);
    // SAFETY: name, iovecs (IoSlice has the layout of iovec) and control describe borrowed memory
    // with its true lengths, which sendmsg only reads.
    cvt(unsafe { libc::sendmsg(fd.as_raw_fd(), &msg, libc::MSG_NOSIGNAL) })
}

/// Points `msg` at a message to send. `msg` must not be used after any of the arguments is gone.
pub(crate) fn fill_msghdr(
    msg: &mut msghdr,
    parts: &[IoSlice<'_>],
    to: Option<&SockAddr>,
    control: Option<&ControlMessages>,
) {
    if let Some(addr) = to {
        msg.msg_name = addr.as_ptr().cast_mut().cast();
        msg.msg_namelen = addr.len;
    }
    msg.msg_iov = parts.as_ptr().cast_mut().cast::<iovec>();
    msg.msg_iovlen = parts.len();
    if let Some(control) = control.filter(|c| c.len > 0) {
        msg.msg_control = control.bytes.as_ptr().cast_mut().cast();
        msg.msg_controllen = control.len;
    }
}

/// Sends messages to one destination with the same control messages. Returns how many were sent:
/// fewer than all when one after the first failed.
pub(crate) fn sendmmsg(
    fd: BorrowedFd<'_>,
    messages: &MessageBatch<'_>,
    to: Option<&SockAddr>,
    control: Option<&ControlMessages>,
) -> Result<usize, i32> {
    let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; MessageBatch::MAX];
    let mut count = 0;
    for (slot, pieces) in headers.iter_mut().zip(messages.iter()) {
        let header = slot.write(mmsghdr { msg_hdr: empty_msghdr(), msg_len: 0 });
        fill_msghdr(&mut header.msg_hdr, pieces, to, control);
        count += 1;
    }
    // SAFETY: the first `count` headers are initialised and describe borrowed memory with its true
    // lengths. sendmmsg only reads it, and writes `msg_len` of the headers.
    cvt(unsafe {
        let headers = headers.as_mut_ptr().cast::<mmsghdr>();
        libc::sendmmsg(fd.as_raw_fd(), headers, count, libc::MSG_NOSIGNAL) as isize
    })
}

/// The maximum number of messages that one [`recvmmsg`] reads.
pub(crate) const RX_BATCH: usize = 64;

/// One message of [`recvmmsg`].
pub(crate) struct BatchEntry<'a, const HEADER: usize> {
    /// Its index in the batch.
    pub(crate) index: usize,
    /// The first bytes of the message, which are not in `packet`.
    pub(crate) header: &'a [u8; HEADER],
    /// The buffer of the rest; its length is not yet set.
    pub(crate) packet: &'a mut PacketBuf,
    /// Length, including the header, and flags.
    pub(crate) received: Received,
    pub(crate) from: &'a SockAddr,
    pub(crate) control: &'a ControlMessages,
}

/// Receives up to [`RX_BATCH`] messages, one per packet, after the default headroom; returns how
/// many. The first `HEADER` bytes of each message go to a separate buffer. `sink` is called for
/// each message in order, and sets the length of the packet.
pub(crate) fn recvmmsg<const HEADER: usize>(
    fd: BorrowedFd<'_>,
    packets: &mut [PacketBuf],
    mut sink: impl FnMut(BatchEntry<'_, HEADER>),
) -> Result<usize, i32> {
    let count = packets.len().min(RX_BATCH);
    let mut slots = [const { MaybeUninit::<RxSlot<HEADER>>::uninit() }; RX_BATCH];
    let mut messages = [const { MaybeUninit::<mmsghdr>::uninit() }; RX_BATCH];
    for ((packet, slot), message) in packets.iter_mut().zip(&mut slots).zip(&mut messages) {
        packet.reset(PacketBuf::HEADROOM);
        let slot = slot.write(RxSlot::new(packet.spare_mut()));
        message.write(mmsghdr { msg_hdr: slot.message(), msg_len: 0 });
    }
    // SAFETY: the first `count` messages are initialised. Each describes its own slot and packet
    // storage with true lengths, all exclusively borrowed, not moved, and untouched until the call
    // returns.
    let ret = unsafe {
        let messages = messages.as_mut_ptr().cast::<mmsghdr>();
        libc::recvmmsg(fd.as_raw_fd(), messages, count as u32, libc::MSG_TRUNC, ptr::null_mut())
    };
    let taken = match cvt(ret as isize) {
        Ok(taken) => taken.min(count),
        Err(libc::EAGAIN | libc::EINTR) => return Ok(0),
        Err(errno) => return Err(errno),
    };
    for (index, packet) in packets.iter_mut().take(taken).enumerate() {
        // SAFETY: entries below `count` were initialised above.
        let (slot, message) =
            unsafe { (slots[index].assume_init_mut(), messages[index].assume_init_ref()) };
        slot.from.len = message.msg_hdr.msg_namelen;
        slot.control.len = message.msg_hdr.msg_controllen;
        let received = Received { len: message.msg_len as usize, flags: message.msg_hdr.msg_flags };
        let RxSlot { header, from, control, .. } = slot;
        sink(BatchEntry { index, header, packet, received, from, control });
    }
    Ok(taken)
}

/// The buffers of one message of a batch, in addition to its packet.
struct RxSlot<const HEADER: usize> {
    parts: [iovec; 2],
    header: [u8; HEADER],
    from: SockAddr,
    control: ControlMessages,
}

impl<const HEADER: usize> RxSlot<HEADER> {
    /// A slot for a message whose bytes after the header go to `room`.
    fn new(room: &mut [u8]) -> Self {
        let none = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let body = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        Self {
            parts: [none, body],
            header: [0; HEADER],
            from: SockAddr::EMPTY,
            control: ControlMessages::new(),
        }
    }

    /// A `msghdr` that describes this slot. It is valid as long as the slot is not moved.
    fn message(&mut self) -> msghdr {
        self.parts[0] = iovec { iov_base: self.header.as_mut_ptr().cast(), iov_len: HEADER };
        // Without a header, only the second iovec is used.
        let unused = usize::from(HEADER == 0);
        let mut msg = empty_msghdr();
        msg.msg_name = self.from.bytes.as_mut_ptr().cast();
        msg.msg_namelen = self.from.bytes.len() as u32;
        msg.msg_iov = self.parts[unused..].as_mut_ptr();
        msg.msg_iovlen = 2 - unused;
        msg.msg_control = self.control.bytes.as_mut_ptr().cast();
        msg.msg_controllen = self.control.bytes.len();
        msg
    }
}

pub(crate) fn readv(fd: BorrowedFd<'_>, parts: &mut [io::IoSliceMut<'_>]) -> Result<usize, i32> {
    // SAFETY: IoSliceMut has the layout of iovec and borrows its memory exclusively.
    cvt(unsafe { libc::readv(fd.as_raw_fd(), parts.as_ptr().cast(), parts.len() as c_int) })
}

pub(crate) fn writev(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<usize, i32> {
    // SAFETY: IoSlice has the layout of iovec and borrows its memory.
    cvt(unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr().cast(), parts.len() as c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_round_trip_when_sizes_differ() {
        let mut control = ControlMessages::new();
        control.push(1, 2, &[7]);
        control.push(3, 4, &9u32.to_ne_bytes());
        let read: Vec<_> = control.iter().map(|(l, k, d)| (l, k, control_int(d))).collect();
        assert_eq!(read, [(1, 2, Some(7)), (3, 4, Some(9))]);
    }

    #[test]
    fn control_messages_end_when_a_length_is_impossible() {
        for len in [0usize, 15, 200, usize::MAX] {
            let mut control = ControlMessages::new();
            control.push(1, 2, &[0; 8]);
            control.bytes[0..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(control.iter().count(), 0, "{len}");
        }
    }

    #[test]
    fn socket_addresses_round_trip() {
        for text in ["192.0.2.1:4789", "[2001:db8::1]:6081", "[fe80::1%7]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(SockAddr::from(addr).ip(), Some(addr));
        }
        assert_eq!(SockAddr::link(3).ip(), None);
    }
}
