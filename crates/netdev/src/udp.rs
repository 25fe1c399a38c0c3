//! UDP sockets of the underlay: [`UdpUnderlay`] receives on a tunnel's port, [`TxPool`] sends from
//! many source ports.
//!
//! Both process *UDP batches* (`Train` in names): up to 64 (128 on newer kernels) datagrams of
//! equal size, only the last of which may be shorter, in one system call (UDP_SEGMENT, UDP_GRO).
//! The kernel or the NIC segments and coalesces them.
//!
//! All sockets set "don't fragment" and ignore the path MTU that the kernel has learned
//! (IP_PMTUDISC_PROBE): anybody can forge the ICMP error that the kernel believes. A datagram above
//! the MTU of the device fails with [`IoError::TooBig`]; one above a smaller path MTU is sent.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use packet::PacketBuf;

use crate::filter::SocketFilter;
use crate::io_error::{IoError, IoResult};
use crate::sys::{self, BatchEntry, ControlMessages, Received, SockAddr};
use crate::{Error, Ifindex, Result};

const SOL_UDP: c_int = libc::IPPROTO_UDP;
const UDP_NO_CHECK6_TX: c_int = 101;
const UDP_NO_CHECK6_RX: c_int = 102;
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;
const SO_BINDTOIFINDEX: c_int = 62;

/// The maximum payload of one datagram or UDP batch: the 16-bit length of IPv4, less the IPv4 and
/// UDP headers. IPv6 could carry 20 bytes more.
pub const MAX_UDP_BATCH_BYTES: usize = 65_507;

/// Options of a receiving socket.
#[derive(Debug, Clone, Copy)]
pub struct UdpOptions {
    /// Let the kernel coalesce datagrams into UDP batches (UDP_GRO).
    pub gro: bool,
    /// Accept datagrams without checksum over IPv6, as RFC 6936 permits for tunnels. Over IPv4 they
    /// are always accepted.
    pub zero_checksum_v6: bool,
    /// Size of the receive queue in bytes.
    pub rx_queue_bytes: u32,
    /// Receive only on this interface. Otherwise a guest whose interface has an IP stack on the
    /// host could forge datagrams of a remote end point.
    pub device: Option<Ifindex>,
    /// Report the TTL or hop limit: [`RxUdpBatch::ttl`]. It costs about 20 ns per UDP batch or
    /// single datagram, a fifteenth of the time to receive a small datagram.
    pub ttl: bool,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self {
            gro: true,
            zero_checksum_v6: false,
            rx_queue_bytes: 8 << 20,
            device: None,
            ttl: false,
        }
    }
}

/// Metadata of a received datagram or UDP batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxUdpBatch {
    /// The sender.
    pub source: SocketAddr,
    /// Payload bytes of each datagram except the last, which may be shorter; `None` for a single
    /// datagram.
    pub gso_size: Option<u16>,
    /// DSCP and ECN of the outer IP header. The ECN bits of all datagrams of a UDP batch are equal.
    pub tos: u8,
    /// TTL or hop limit of the outer IP header, equal in all datagrams of a UDP batch; `None`
    /// unless [`UdpOptions::ttl`] is set.
    pub ttl: Option<u8>,
    /// Total payload bytes.
    pub len: usize,
}

impl RxUdpBatch {
    /// A placeholder for [`UdpUnderlay::recv_batch`] to overwrite.
    pub const EMPTY: Self = Self {
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        gso_size: None,
        tos: 0,
        ttl: None,
        len: 0,
    };
}

/// The receiving socket of a tunnel's port. All calls work from any thread.
#[derive(Debug)]
pub struct UdpUnderlay {
    fd: OwnedFd,
    malformed: AtomicU32,
}

impl UdpUnderlay {
    /// Binds a socket to the address and port `local` in this thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Os`]: EADDRINUSE when the port is in use (for instance by a kernel tunnel device),
    /// EADDRNOTAVAIL when the address is not local.
    pub fn bind(local: SocketAddr, options: UdpOptions) -> Result<Self> {
        Self::open(local, options).map_err(|e| Error::os(format!("bind UDP {local}"), e))
    }

    /// Binds `count` sockets, one per thread, that share the datagrams to the address and port
    /// `local`. All datagrams of one source address and port, and thus of an inner flow, go to the
    /// same socket.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a count of zero; otherwise as [`UdpUnderlay::bind`], also when
    /// another group has the port.
    pub fn bind_group(local: SocketAddr, options: UdpOptions, count: usize) -> Result<Vec<Self>> {
        let what = || format!("bind UDP {local} for {count} sockets");
        if count == 0 {
            return Err(Error::invalid(what(), "the count must be at least 1"));
        }
        let os = |e| Error::os(what(), e);
        let share = |fd: BorrowedFd<'_>| {
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1 as c_int)
        };
        // The first socket is bound without SO_REUSEPORT, which fails when the port is in use.
        let mut group = vec![Self::open(local, options).map_err(os)?];
        let local = group.iter().map(Self::local_addr).next().transpose()?.unwrap_or(local);
        if count > 1 {
            group.iter().try_for_each(|first| share(first.fd.as_fd())).map_err(os)?;
        }
        for _ in 1..count {
            let fd = rx_socket(local, options).map_err(os)?;
            share(fd.as_fd()).map_err(os)?;
            sys::bind(fd.as_fd(), &SockAddr::from(local)).map_err(os)?;
            group.push(Self::from_bound(fd));
        }
        Ok(group)
    }

    fn open(local: SocketAddr, options: UdpOptions) -> std::io::Result<Self> {
        let fd = rx_socket(local, options)?;
        sys::bind(fd.as_fd(), &SockAddr::from(local))?;
        Ok(Self::from_bound(fd))
    }

    pub(crate) fn from_bound(fd: OwnedFd) -> Self {
        Self { fd, malformed: AtomicU32::new(0) }
    }

    /// Reads the next datagram or UDP batch into `packet`, after the default headroom. `None` when
    /// there is none. `packet` must hold 65,535 bytes. The kernel or the NIC has verified the
    /// checksums.
    ///
    /// # Errors
    /// [`IoError::Truncated`] and [`IoError::Malformed`] for a lost datagram or UDP batch; the next
    /// call reads the next one.
    #[inline]
    pub fn recv(&self, packet: &mut PacketBuf) -> IoResult<Option<RxUdpBatch>> {
        packet.reset(PacketBuf::HEADROOM);
        let mut control = ControlMessages::new();
        let mut from = SockAddr::EMPTY;
        let parts = &mut [IoSliceMut::new(packet.spare_mut())];
        match sys::recvmsg(self.fd.as_fd(), parts, Some(&mut from), &mut control) {
            Ok(Some(received)) => train(packet, &received, &from, &control).map(Some),
            Ok(None) => Ok(None),
            Err(errno) => Err(IoError::from_errno(errno)),
        }
    }

    /// Reads up to 64 datagrams or UDP batches with one system call, each into one of `packets`; 16
    /// is a good number. Returns how many, and their metadata in `trains`. Without GRO, packets may
    /// be smaller than 65,535 bytes. One that does not fit its packet or is invalid is counted
    /// ([`UdpUnderlay::malformed`]) and left empty (`len` 0). For UDP batches,
    /// [`UdpUnderlay::recv`] is cheaper.
    ///
    /// # Errors
    /// [`IoError::Os`] when the kernel refuses.
    pub fn recv_batch(
        &self,
        packets: &mut [PacketBuf],
        trains: &mut [RxUdpBatch],
    ) -> IoResult<usize> {
        let count = packets.len().min(trains.len());
        sys::recvmmsg(self.fd.as_fd(), &mut packets[..count], |entry: BatchEntry<'_, 0>| {
            let BatchEntry { index, packet, received, from, control, .. } = entry;
            trains[index] = train(packet, &received, from, control).unwrap_or_else(|_| {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                packet.set_len(0);
                RxUdpBatch::EMPTY
            });
        })
        .map_err(IoError::from_errno)
    }

    /// Datagrams and UDP batches that [`UdpUnderlay::recv_batch`] has discarded as truncated or
    /// invalid, modulo 2^32.
    pub fn malformed(&self) -> u32 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Datagrams that the kernel dropped because the queue was full or the checksum wrong, modulo
    /// 2^32.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn dropped(&self) -> Result<u32> {
        sys::dropped(self.fd.as_fd()).map_err(|e| Error::os("read the counters of a UDP socket", e))
    }

    /// The address and port that the socket is bound to.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        local_addr(self.fd.as_fd())
    }
}

impl AsFd for UdpUnderlay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Options of a pool of sending sockets.
#[derive(Debug, Clone, Copy)]
pub struct TxOptions {
    /// The first source port to try. The pool uses the first free run of `count` ports from here
    /// on; pools share ports with each other.
    pub base_port_hint: u16,
    /// The number of source ports; at least 1.
    pub count: u16,
    /// Send single datagrams with checksum zero. Trains always have checksums, which the kernel
    /// computes. Over IPv6 this is the exception of RFC 6936 for tunnels; the receiver has to
    /// permit it.
    pub zero_checksum: bool,
    /// Size of the transmit queue of each socket in bytes.
    pub tx_queue_bytes: u32,
}

impl Default for TxOptions {
    /// 64 ports of the dynamic range (RFC 6335), checksums on, 4 MiB.
    fn default() -> Self {
        Self { base_port_hint: 49_152, count: 64, zero_checksum: false, tx_queue_bytes: 4 << 20 }
    }
}

/// The destination and header fields of a datagram or UDP batch to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxUdpBatch {
    /// The remote end point.
    pub dst: SocketAddr,
    /// Hash of the inner flow; selects the source port.
    pub entropy: u32,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// TTL or hop limit of the outer header; `None` for the host's default.
    pub ttl: Option<u8>,
    /// Payload bytes of each datagram except the last; `None` for a single datagram.
    pub gso_size: Option<u16>,
}

/// Sending sockets with different source ports. All calls work from any thread.
#[derive(Debug)]
pub struct TxPool {
    sockets: Vec<OwnedFd>,
    /// Sockets without checksum for single datagrams, on the same ports.
    zero_checksum: Vec<OwnedFd>,
    is_ipv4: bool,
    base_port: u16,
    max_segments: usize,
}

impl TxPool {
    /// Binds `options.count` sockets to consecutive ports of the address `local` in this thread's
    /// network namespace.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a count of zero, [`Error::Os`] when the address is not local or no
    /// run of ports is free.
    pub fn new(local: IpAddr, options: TxOptions) -> Result<Self> {
        let what = || format!("bind {} UDP source ports of {local}", options.count);
        if options.count == 0 {
            return Err(Error::invalid(what(), "the count must be at least 1"));
        }
        let mut base = options.base_port_hint.max(1024);
        let sockets = loop {
            match bind_run(local, base, &options) {
                Ok(sockets) => break sockets,
                Err((error, taken)) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                    // Continue after the port that is in use, as long as a run fits.
                    let next =
                        taken.checked_add(1).filter(|b| b.checked_add(options.count - 1).is_some());
                    base = next.ok_or_else(|| Error::os(what(), error))?;
                }
                Err((error, _)) => return Err(Error::os(what(), error)),
            }
        };
        let zero_checksum = if options.zero_checksum {
            let sockets = bind_run(local, base, &options).map_err(|(e, _)| Error::os(what(), e))?;
            for socket in &sockets {
                let (level, name) = match local {
                    IpAddr::V4(_) => (libc::SOL_SOCKET, libc::SO_NO_CHECK),
                    IpAddr::V6(_) => (SOL_UDP, UDP_NO_CHECK6_TX),
                };
                sys::set_option(socket.as_fd(), level, name, 1 as c_int)
                    .map_err(|e| Error::os(what(), e))?;
            }
            sockets
        } else {
            Vec::new()
        };
        let is_ipv4 = local.is_ipv4();
        let mut pool = Self { sockets, zero_checksum, is_ipv4, base_port: base, max_segments: 64 };
        pool.max_segments = pool.probe_max_segments(local);
        Ok(pool)
    }

    /// All sockets of the pool.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().chain(&self.zero_checksum).map(AsFd::as_fd)
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.is_ipv4
    }

    /// The first source port, and the number of ports.
    pub fn ports(&self) -> (u16, u16) {
        (self.base_port, self.sockets.len() as u16)
    }

    /// The maximum number of datagrams in a UDP batch: 64, or 128 on newer kernels.
    pub fn max_segments(&self) -> usize {
        self.max_segments
    }

    /// Sends the bytes of `pieces` as one datagram, or as a UDP batch that is segmented every
    /// `gso_size` bytes, with one system call. Returns the bytes sent. The limits are
    /// [`MAX_UDP_BATCH_BYTES`], [`TxPool::max_segments`] datagrams and 1024 pieces.
    ///
    /// # Errors
    /// [`IoError::TooBig`] beyond these limits or above the MTU of the device; [`IoError::Full`]
    /// when the queue is full; [`IoError::Unreachable`] without a route.
    #[inline]
    pub fn send(&self, train: &TxUdpBatch, pieces: &[IoSlice<'_>]) -> IoResult<usize> {
        let mut control = header_control(train);
        let Some(size) = train.gso_size else {
            return self.send_one(train, pieces, &control);
        };
        control.push(SOL_UDP, UDP_SEGMENT, &size.to_ne_bytes());
        let to = SockAddr::from(train.dst);
        match sys::sendmsg(self.socket(train.entropy, false), pieces, Some(&to), Some(&control)) {
            Ok(sent) => Ok(sent),
            // Linux before 6.11 does not segment UDP batches for a device without checksum offload.
            Err(libc::EIO) => self.send_one_by_one(train, size, pieces),
            // Kernels before 6.13 return EINVAL when a datagram exceeds the MTU; all kernels do
            // for too many datagrams.
            Err(libc::EINVAL) => Err(IoError::TooBig),
            Err(errno) => Err(IoError::from_errno(errno)),
        }
    }

    fn send_one(
        &self,
        train: &TxUdpBatch,
        pieces: &[IoSlice<'_>],
        control: &ControlMessages,
    ) -> IoResult<usize> {
        let to = SockAddr::from(train.dst);
        sys::sendmsg(self.socket(train.entropy, true), pieces, Some(&to), Some(control))
            .map_err(IoError::from_errno)
    }

    /// Sends the datagrams of a UDP batch one by one.
    #[cold]
    fn send_one_by_one(
        &self,
        train: &TxUdpBatch,
        size: u16,
        pieces: &[IoSlice<'_>],
    ) -> IoResult<usize> {
        let control = header_control(train);
        let mut sent = 0;
        let mut datagram: Vec<IoSlice<'_>> = Vec::new();
        let mut room = usize::from(size);
        for piece in pieces {
            let mut rest: &[u8] = piece;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(room));
                datagram.push(IoSlice::new(now));
                room -= now.len();
                rest = later;
                if room == 0 {
                    sent += self.send_one(train, &datagram, &control)?;
                    datagram.clear();
                    room = usize::from(size);
                }
            }
        }
        if !datagram.is_empty() {
            sent += self.send_one(train, &datagram, &control)?;
        }
        Ok(sent)
    }

    fn socket(&self, entropy: u32, single: bool) -> BorrowedFd<'_> {
        let index = entropy as usize % self.sockets.len();
        let pool = if single && !self.zero_checksum.is_empty() {
            &self.zero_checksum
        } else {
            &self.sockets
        };
        pool[index].as_fd()
    }

    /// Sends a UDP batch of 65 one-byte datagrams from the first port to itself, where the filter
    /// drops them. A kernel with a limit of 64 refuses it before any other check.
    fn probe_max_segments(&self, local: IpAddr) -> usize {
        let mut control = ControlMessages::new();
        control.push(SOL_UDP, UDP_SEGMENT, &1u16.to_ne_bytes());
        let to = SockAddr::from(SocketAddr::new(local, self.base_port));
        let sent = sys::sendmsg(
            self.socket(0, false),
            &[IoSlice::new(&[0; 65])],
            Some(&to),
            Some(&control),
        );
        if sent == Ok(65) { 128 } else { 64 }
    }
}

/// Creates a receiving socket that can be bound to `local`.
pub(crate) fn rx_socket(local: SocketAddr, options: UdpOptions) -> std::io::Result<OwnedFd> {
    let fd = tunnel_socket(local.ip())?;
    let socket = fd.as_fd();
    let set = |level, name, value: bool| {
        if value { sys::set_option(socket, level, name, 1 as c_int) } else { Ok(()) }
    };
    set(SOL_UDP, UDP_GRO, options.gro)?;
    if let Some(device) = options.device {
        sys::set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, device.0)?;
    }
    match local {
        SocketAddr::V4(_) => {
            set(libc::IPPROTO_IP, libc::IP_RECVTOS, true)?;
            set(libc::IPPROTO_IP, libc::IP_RECVTTL, options.ttl)?;
        }
        SocketAddr::V6(_) => {
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, true)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, options.ttl)?;
            set(SOL_UDP, UDP_NO_CHECK6_RX, options.zero_checksum_v6)?;
        }
    }
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, options.rx_queue_bytes)?;
    Ok(fd)
}

/// Creates a UDP socket of the family of `local` that sets "don't fragment" and ignores the path
/// MTU that the kernel has learned.
fn tunnel_socket(local: IpAddr) -> std::io::Result<OwnedFd> {
    let fd = sys::socket(sys::family(local), libc::SOCK_DGRAM, libc::IPPROTO_UDP)?;
    let set = |level, name, value: c_int| sys::set_option(fd.as_fd(), level, name, value);
    if local.is_ipv4() {
        set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    } else {
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
    }
    Ok(fd)
}

/// Binds `options.count` consecutive ports from `base` on. The error holds the port that failed.
fn bind_run(
    local: IpAddr,
    base: u16,
    options: &TxOptions,
) -> Result<Vec<OwnedFd>, (std::io::Error, u16)> {
    let bind = |port: u16| -> std::io::Result<OwnedFd> {
        let fd = tunnel_socket(local)?;
        let set = |name, value| sys::set_option(fd.as_fd(), libc::SOL_SOCKET, name, value);
        // All pools of an address use the same ports. They receive nothing, so sharing is harmless.
        set(libc::SO_REUSEPORT, 1)?;
        set(libc::SO_RCVBUF, 0)?;
        set(libc::SO_SNDBUFFORCE, options.tx_queue_bytes.min(i32::MAX as u32) as c_int)?;
        SocketFilter::nothing().attach(&fd).map_err(std::io::Error::other)?;
        sys::bind(fd.as_fd(), &SockAddr::from(SocketAddr::new(local, port)))?;
        Ok(fd)
    };
    (0..options.count)
        .map(|i| {
            let port =
                base.checked_add(i).ok_or((std::io::ErrorKind::AddrInUse.into(), u16::MAX))?;
            bind(port).map_err(|e| (e, port))
        })
        .collect()
}

fn header_control(train: &TxUdpBatch) -> ControlMessages {
    sys::header_control(train.dst.is_ipv4(), train.tos, train.ttl)
}

/// The metadata of a received message; sets the length of `packet`.
#[inline]
fn train(
    packet: &mut PacketBuf,
    received: &Received,
    from: &SockAddr,
    control: &ControlMessages,
) -> IoResult<RxUdpBatch> {
    if received.flags & libc::MSG_TRUNC != 0 {
        return Err(IoError::Truncated);
    }
    let source = from.ip().ok_or(IoError::Malformed)?;
    packet.set_len(received.len);
    let mut train = RxUdpBatch { source, len: received.len, ..RxUdpBatch::EMPTY };
    for (level, kind, data) in control.iter() {
        let Some(value) = sys::control_int(data) else { continue };
        match (level, kind) {
            (SOL_UDP, UDP_GRO) => {
                // The kernel reports a segment size for single datagrams too.
                let size = u16::try_from(value).map_err(|_| IoError::Malformed)?;
                train.gso_size = Some(size).filter(|&s| s > 0 && usize::from(s) < received.len);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                train.tos = value as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                train.ttl = Some(value as u8);
            }
            _ => {}
        }
    }
    Ok(train)
}

fn local_addr(fd: BorrowedFd<'_>) -> Result<SocketAddr> {
    let what = "read the address of a socket";
    let addr = sys::local_addr(fd).map_err(|e| Error::os(what, e))?;
    addr.ip().ok_or_else(|| Error::malformed(what, "not an IP address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OwnedNetns;

    #[test]
    fn train_arrives_as_equal_datagrams_when_sent_one_by_one() {
        testkit::require_root!();
        let netns = OwnedNetns::create(&format!("weft-test-{}-cut", std::process::id())).unwrap();
        let local: SocketAddr = "127.0.0.1:4789".parse().unwrap();
        let options = UdpOptions { gro: false, ..UdpOptions::default() };
        let rx = netns.run_in(|| UdpUnderlay::bind(local, options)).unwrap().unwrap();
        let options = TxOptions { count: 1, ..TxOptions::default() };
        let tx = netns.run_in(|| TxPool::new(local.ip(), options)).unwrap().unwrap();

        let payload: Vec<u8> = (0..2500).map(|i| (i % 251) as u8).collect();
        let (head, tail) = payload.split_at(700);
        let train = TxUdpBatch { dst: local, entropy: 0, tos: 4, ttl: None, gso_size: Some(1000) };
        let pieces = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
        assert_eq!(tx.send_one_by_one(&train, 1000, &pieces).unwrap(), 2500);
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, 2000);
        for expected in payload.chunks(1000) {
            // Loopback delivers before the sender's call returns.
            let received = rx.recv(&mut packet).unwrap().unwrap();
            assert_eq!((packet.head(), received.tos), (expected, 4));
        }
        assert_eq!(rx.recv(&mut packet).unwrap(), None);
    }
}
