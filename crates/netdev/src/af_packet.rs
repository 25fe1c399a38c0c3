//! [`PacketSocket`]: raw frames of an existing interface (packet(7)), super-packets included.
//!
//! Received frames are copies: the host's IP stack sees them too. Use narrow filters, and keep the
//! stack from replying to the same frames. Frames that this host sends through the interface are
//! received only on request.
//!
//! # VLAN tags and the MTU
//! The kernel moves the outermost tag of a received frame (TPID 0x8100 or 0x88a8, not 0x9100) to
//! the metadata: [`PacketRx::vlan`]. Tags to send are part of the frame, also in super-packets. A
//! frame that is not a super-packet may exceed the MTU by one tag of TPID 0x8100 and by nothing
//! else: tags of TPID 0x88a8 and double tags need a larger MTU. Super-packets behind a tag of TPID
//! 0x9100 must be segmented first, because the kernel cannot do it.
//!
//! # SCTP
//! A veth offers SCTP checksum and segmentation offload, so a guest behind one leaves both to the
//! receiver. This socket completes the checksum on receive ([`packet::complete_crc32c`]). A
//! virtio-net header cannot describe SCTP super-packets: the kernel reports an error instead, and
//! each is lost ([`IoError::Malformed`]) until the guest retransmits it in segments.
//! `tx-sctp-segmentation off` on the *guest's* end avoids that. (TAP interfaces offer neither.)
//!
//! # Why no rings
//! Memory-mapped rings were measured against these calls. A transmit ring costs a third more CPU
//! per super-packet over veth, where the kernel copies its slots. When forwarding TCP, a receive
//! ring saves CPU only as long as frames are used in place, which a [`PacketBuf`] cannot do. Every
//! slot has to hold a super-packet: 64 frames of any size fill 4.4 MB of memory, and bursts are
//! dropped that the socket's queue holds.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use packet::PacketBuf;
use packet::vnet::{self, VNET_LEN};

use crate::batch::IoSlices;
use crate::filter::SocketFilter;
use crate::io_error::{IoError, IoResult};
use crate::sys::{self, BatchEntry, ControlMessages, Received, SockAddr};
use crate::{Error, Ifindex, Result};

/// The maximum number of sockets in a group (the limit of Linux before 5.15).
pub const MAX_GROUP: usize = 256;

/// Distributes frames over a group by flow hash (PACKET_FANOUT_HASH, 0), and ignores frames that
/// this host sends (PACKET_FANOUT_FLAG_IGNORE_OUTGOING): the kernel does not check
/// PACKET_IGNORE_OUTGOING for groups.
const FANOUT: libc::c_int = 0x4000;
/// The same flags, and the kernel chooses an unused group identifier (PACKET_FANOUT_FLAG_UNIQUEID).
const FANOUT_UNIQUE: libc::c_int = FANOUT | 0x2000;

/// Options of a packet socket.
#[derive(Debug, Clone, Copy)]
pub struct PacketOptions {
    /// Receive frames for any MAC address, not only the interface's own and its groups.
    pub promiscuous: bool,
    /// Bypass the qdisc when sending. Frames are then dropped when the driver's queue is full,
    /// instead of waiting. Interfaces without a qdisc (veth) gain little.
    pub qdisc_bypass: bool,
    /// Size of the receive queue in bytes.
    pub rx_queue_bytes: u32,
    /// Receive frames that this host sends, too (for packet capture).
    pub outgoing: bool,
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self { promiscuous: false, qdisc_bypass: false, rx_queue_bytes: 8 << 20, outgoing: false }
    }
}

/// A VLAN tag that the kernel removed from a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag protocol identifier: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority (3 bits), drop eligible (1 bit), VLAN identifier (12 bits).
    pub tci: u16,
}

/// Metadata of a received frame, in addition to its bytes and offload state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketRx {
    /// The outermost VLAN tag, which is *not* in the frame; further tags are.
    pub vlan: Option<VlanTag>,
}

/// Counters of a packet socket since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketStats {
    /// Frames that passed the filter, including dropped ones.
    pub frames: u64,
    /// Frames dropped because the receive queue was full.
    pub dropped: u64,
}

/// A packet socket on one interface. All calls work from any thread.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: Ifindex,
    frames: AtomicU64,
    dropped: AtomicU64,
    malformed: AtomicU32,
}

impl PacketSocket {
    /// Opens a socket on the interface `ifindex` of this thread's network namespace that receives
    /// the frames that `filter` accepts.
    ///
    /// # Errors
    /// [`Error::Os`]: EPERM without CAP_NET_RAW, ENODEV when the interface does not exist. A link
    /// that is down is no error.
    pub fn open(ifindex: Ifindex, filter: &SocketFilter, options: PacketOptions) -> Result<Self> {
        Self::bind(ifindex, SockAddr::link(ifindex.0), filter, options)
    }

    /// Opens a socket on the interface `ifindex` of this thread's network namespace that only
    /// sends. It adds no cost to the receive path. It learns that the link is gone only from
    /// [`PacketSocket::send`].
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn open_sender(ifindex: Ifindex) -> Result<Self> {
        let address = SockAddr::link_to_send_by(ifindex.0);
        Self::bind(ifindex, address, &SocketFilter::nothing(), PacketOptions::default())
    }

    fn bind(
        ifindex: Ifindex,
        address: SockAddr,
        filter: &SocketFilter,
        options: PacketOptions,
    ) -> Result<Self> {
        let what = || format!("open a packet socket on interface {ifindex}");
        let os = |e| Error::os(what(), e);
        // With protocol 0 nothing is received until bind, when the filter is in place.
        let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(os)?;
        filter.attach(&fd)?;
        let socket = fd.as_fd();
        let set = |name, value: libc::c_int| {
            sys::set_option(socket, libc::SOL_PACKET, name, value).map_err(os)
        };
        set(libc::PACKET_VNET_HDR, 1)?;
        set(libc::PACKET_AUXDATA, 1)?;
        set(libc::PACKET_IGNORE_OUTGOING, (!options.outgoing).into())?;
        set(libc::PACKET_QDISC_BYPASS, options.qdisc_bypass.into())?;
        sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, options.rx_queue_bytes)
            .map_err(os)?;
        sys::bind(socket, &address).map_err(os)?;
        if options.promiscuous {
            let membership = libc::packet_mreq {
                mr_ifindex: ifindex.0 as libc::c_int,
                mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, membership)
                .map_err(os)?;
        }
        Ok(Self {
            fd,
            ifindex,
            frames: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            malformed: AtomicU32::new(0),
        })
    }

    /// Opens `count` sockets, one per thread, that share the frames that `filter` accepts. All
    /// frames of a flow go to the same socket, in both directions, also in tunnels that the kernel
    /// dissects. Nothing is received until all sockets exist.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `count` is 1 to [`MAX_GROUP`]; as [`PacketSocket::open`]
    /// otherwise.
    pub fn open_group(
        ifindex: Ifindex,
        filter: &SocketFilter,
        options: PacketOptions,
        count: usize,
    ) -> Result<Vec<Self>> {
        let what = || format!("open {count} packet sockets on interface {ifindex}");
        if count == 0 || count > MAX_GROUP {
            return Err(Error::invalid(what(), format!("a group has 1 to {MAX_GROUP} sockets")));
        }
        if count == 1 {
            return Ok(vec![Self::open(ifindex, filter, options)?]);
        }
        // A socket that has not joined receives everything. So the sockets get the real filter only
        // after all have joined.
        let open = |_| Self::open(ifindex, &SocketFilter::nothing(), options);
        let group = (0..count).map(open).collect::<Result<Vec<_>>>()?;
        let mut id = 0;
        for (i, socket) in group.iter().enumerate() {
            let os = |e| Error::os(what(), e);
            // The first socket asks for an unused group.
            let flags = if i == 0 { FANOUT_UNIQUE } else { FANOUT };
            let value = id | flags << 16;
            sys::set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, value)
                .map_err(os)?;
            if i == 0 {
                let value: libc::c_int =
                    sys::option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT)
                        .map_err(os)?;
                id = value & 0xffff;
            }
        }
        group.iter().try_for_each(|socket| filter.attach(socket))?;
        Ok(group)
    }

    /// Like [`PacketSocket::open`], by the name of the interface.
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn open_name(name: &str, filter: &SocketFilter, options: PacketOptions) -> Result<Self> {
        Self::open(crate::tap::index_of(name)?, filter, options)
    }

    /// The index of the interface.
    pub fn ifindex(&self) -> Ifindex {
        self.ifindex
    }

    /// Reads the next frame and its offload state into `packet`, after the default headroom. `None`
    /// when there is none.
    /// `packet` should hold [`PacketBuf::MAX_FRAME`] bytes.
    ///
    /// # Errors
    /// [`IoError::LinkDown`] once after the link went down, [`IoError::DeviceGone`] after the
    /// interface was deleted, [`IoError::Truncated`] and [`IoError::Malformed`] for a lost frame;
    /// the next call reads the next frame.
    #[inline]
    pub fn recv(&self, packet: &mut PacketBuf) -> IoResult<Option<PacketRx>> {
        packet.reset(PacketBuf::HEADROOM);
        let mut header = [0; VNET_LEN];
        let mut control = ControlMessages::new();
        let parts = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(packet.spare_mut())];
        match sys::recvmsg(self.fd.as_fd(), parts, None, &mut control) {
            Ok(Some(received)) => frame(packet, &header, &received, &control).map(Some),
            Ok(None) => Ok(None),
            Err(errno) => Err(self.rx_error(errno)),
        }
    }

    /// Reads up to 64 frames with one system call, each into one of `packets`, like
    /// [`PacketSocket::recv`]. Returns how many, and their metadata in `about`. Small frames cost
    /// about a seventh less than with single calls; super-packets cost the same. A frame that does
    /// not fit its packet or is invalid is counted ([`PacketSocket::malformed`]) and left empty.
    ///
    /// # Errors
    /// As [`PacketSocket::recv`].
    pub fn recv_batch(&self, packets: &mut [PacketBuf], about: &mut [PacketRx]) -> IoResult<usize> {
        let count = packets.len().min(about.len());
        sys::recvmmsg(self.fd.as_fd(), &mut packets[..count], |entry: BatchEntry<'_, VNET_LEN>| {
            let BatchEntry { index, header, packet, received, control, .. } = entry;
            about[index] = frame(packet, header, &received, control).unwrap_or_else(|_| {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                packet.set_len(0);
                PacketRx::default()
            });
        })
        .or_else(|errno| match self.rx_error(errno) {
            IoError::Malformed => {
                self.malformed.fetch_add(1, Ordering::Relaxed);
                Ok(0)
            }
            error => Err(error),
        })
    }

    /// Frames that [`PacketSocket::recv_batch`] lost, modulo 2^32.
    pub fn malformed(&self) -> u32 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Sends `packet` unchanged. The device segments a super-packet and completes a partial
    /// checksum; where it cannot, the kernel does.
    ///
    /// # Errors
    /// [`IoError::LinkDown`], [`IoError::Full`], [`IoError::DeviceGone`]; [`IoError::TooBig`] above
    /// 1023 pieces, for a frame longer than the MTU, or for a super-packet behind a tag of TPID
    /// 0x9100.
    #[inline]
    pub fn send(&self, packet: &PacketBuf) -> IoResult<()> {
        // The kernel would drop it, with ENOBUFS or, behind a qdisc, without an error.
        if packet.offload.gso.is_some() && has_unknown_tag(packet.head()) {
            return Err(IoError::TooBig);
        }
        let mut header = [0; VNET_LEN];
        vnet::encode(packet, &mut header)?;
        let mut parts = IoSlices::new();
        if !parts.push(&header) || !parts.extend(packet.pieces()) {
            return Err(IoError::TooBig);
        }
        match sys::sendmsg(self.fd.as_fd(), parts.as_slice(), None, None) {
            Ok(_) => Ok(()),
            Err(errno) => Err(IoError::from_errno(errno)),
        }
    }

    /// Counters since the socket was opened.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel refuses.
    pub fn stats(&self) -> Result<PacketStats> {
        // Reading resets the kernel's counters, hence the running totals.
        let new: libc::tpacket_stats =
            sys::option(self.fd.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS)
                .map_err(|e| Error::os("read the counters of a packet socket", e))?;
        let add =
            |sum: &AtomicU64, n: u32| sum.fetch_add(u64::from(n), Ordering::Relaxed) + u64::from(n);
        Ok(PacketStats {
            frames: add(&self.frames, new.tp_packets),
            dropped: add(&self.dropped, new.tp_drops),
        })
    }

    /// Classifies an error on receive. The kernel reports ENETDOWN once for a deleted interface
    /// too, but then it has also detached the socket. EINVAL stands for a super-packet that a
    /// virtio-net header cannot describe (SCTP); that packet is lost.
    #[cold]
    fn rx_error(&self, errno: i32) -> IoError {
        let detached = || sys::local_addr(self.fd.as_fd()).is_ok_and(|addr| addr.ifindex() == -1);
        match errno {
            libc::ENETDOWN if detached() => IoError::DeviceGone,
            libc::EINVAL => IoError::Malformed,
            errno => IoError::from_errno(errno),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// True when the kernel does not find the headers behind the VLAN tags of a frame: one tag has TPID
/// 0x9100, which the kernel does not know, or there are more than seven tags.
#[inline]
pub fn has_unknown_tag(frame: &[u8]) -> bool {
    /// The kernel's VLAN_MAX_DEPTH is 8, and it does not parse past the eighth.
    const MOST: usize = 7;
    let (tags, _) = frame.get(12..).unwrap_or_default().as_chunks::<4>();
    for (number, &[a, b, _, _]) in tags.iter().enumerate() {
        match u16::from_be_bytes([a, b]) {
            0x9100 => return true,
            0x8100 | 0x88a8 if number == MOST => return true,
            0x8100 | 0x88a8 => {}
            _ => return false,
        }
    }
    false
}

/// The metadata of a received frame; sets length and offload state of `packet`.
#[inline]
fn frame(
    packet: &mut PacketBuf,
    header: &[u8; VNET_LEN],
    received: &Received,
    control: &ControlMessages,
) -> IoResult<PacketRx> {
    if received.flags & libc::MSG_TRUNC != 0 {
        return Err(IoError::Truncated);
    }
    vnet::receive(packet, header, received.len.saturating_sub(VNET_LEN))?;
    Ok(PacketRx { vlan: stripped_tag(control) })
}

/// The VLAN tag in PACKET_AUXDATA (`struct tpacket_auxdata`: status, len, snaplen u32; mac, net,
/// tci, tpid u16).
fn stripped_tag(control: &ControlMessages) -> Option<VlanTag> {
    let (_, _, aux) = control
        .iter()
        .find(|&(level, kind, _)| (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA))?;
    let status = u32::from_ne_bytes(aux.get(0..4)?.try_into().ok()?);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tci = u16::from_ne_bytes(aux.get(16..18)?.try_into().ok()?);
    let tpid = u16::from_ne_bytes(aux.get(18..20)?.try_into().ok()?);
    let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    Some(VlanTag { tpid: if known { tpid } else { 0x8100 }, tci })
}

#[cfg(test)]
mod tests {
    use super::has_unknown_tag;

    #[test]
    fn tags_are_looked_at_one_after_another() {
        let frame = |tpids: &[u16]| {
            let tags = tpids.iter().flat_map(|tpid| [*tpid, 1]).flat_map(u16::to_be_bytes);
            [0; 12].into_iter().chain(tags).chain([8, 0, 0x45, 0]).collect::<Vec<u8>>()
        };
        let table: [(&[u16], bool); 7] = [
            (&[], false),
            (&[0x9100], true),
            (&[0x8100, 0x88a8, 0x8100], false),
            (&[0x88a8, 0x8100, 0x9100], true),
            (&[0x86dd, 0x9100], false),
            (&[0x8100; 7], false),
            (&[0x8100; 8], true),
        ];
        for (tpids, unknown) in table {
            assert_eq!(has_unknown_tag(&frame(tpids)), unknown, "{tpids:x?}");
        }
        assert!(!has_unknown_tag(&[0; 13]), "cut short");
    }
}
