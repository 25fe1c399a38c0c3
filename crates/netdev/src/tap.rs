//! [`Tap`]: the host's end of a virtual Ethernet interface, whose other end belongs to a guest.
//!
//! Frames carry a virtio-net header, so that 64-KiB super-packets and partial checksums pass with
//! one system call each. The interface is created in the network namespace of the thread that opens
//! it, and disappears when the [`Tap`] is dropped. All calls work from any thread.
//!
//! An open TAP keeps the namespace *where it was opened* alive. A guest's namespace could therefore
//! never end if its TAP was opened inside. Open it outside and move the interface in
//! ([`crate::Netlink::move_to`]): the end of the guest's namespace then deletes the interface, and
//! the next call returns [`IoError::DeviceGone`].

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use packet::PacketBuf;
use packet::vnet::{self, VNET_LEN};

use crate::batch::IoSlices;
use crate::io_error::{IoError, IoResult};
use crate::sys;
use crate::{Error, Ifindex, Netlink, Result, TunQueues};

const TUN_F_UDP_SEGMENT: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;
const TUN_F_BASE: libc::c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;

/// A TAP interface.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    udp_segmentation: bool,
}

/// True when this kernel's TAPs accept super-packets that are already in a UDP tunnel
/// (TUN_F_UDP_TUNNEL_GSO, Linux 6.17). Tested on an interface in a temporary namespace.
///
/// # Errors
/// [`Error::is_permission`] without CAP_NET_ADMIN and CAP_SYS_ADMIN.
pub fn supports_tunnel_gso() -> Result<bool> {
    const TUN_F_UDP_TUNNEL_GSO: libc::c_uint = 0x080;
    crate::netns::on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::os("create a network namespace", errno))?;
        let tap = Tap::open("probe")?;
        let offloads = TUN_F_BASE | TUN_F_UDP_SEGMENT | TUN_F_UDP_TUNNEL_GSO;
        // SAFETY: TUNSETOFFLOAD takes its flags by value.
        let set = unsafe {
            libc::ioctl(tap.fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads))
        };
        Ok(set == 0)
    })
}

/// The maximum number of queues of one interface (the kernel's MAX_TAP_QUEUES).
pub const MAX_QUEUES: usize = 256;

impl Tap {
    /// Creates the interface `name` in the network namespace of this thread, or attaches to it when
    /// it exists without an owner. `name` has 1 to 15 bytes; a `%d` in it is replaced by a free
    /// number. Dropping the `Tap` removes the interface.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name. [`Error::Os`]: EPERM without CAP_NET_ADMIN, EBUSY
    /// when another process holds the interface.
    pub fn open(name: &str) -> Result<Self> {
        Self::attach(name, 0)
    }

    /// Like [`Tap::open`], with `count` queues, one `Tap` per thread. The kernel keeps a flow in
    /// one queue: the queue that last sent frames of the reverse direction, or one chosen by flow
    /// hash. Dropping the last queue removes the interface. With `count` above 1, only multi-queue
    /// openers can attach to it.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `count` is 1 to [`MAX_QUEUES`]; as [`Tap::open`] otherwise.
    pub fn open_queues(name: &str, count: usize) -> Result<Vec<Self>> {
        if count == 0 || count > MAX_QUEUES {
            let what = format!("create TAP {name} with {count} queues");
            return Err(Error::invalid(what, format!("an interface has 1 to {MAX_QUEUES} queues")));
        }
        if count == 1 {
            return Ok(vec![Self::open(name)?]);
        }
        let mut queues = vec![Self::attach(name, libc::IFF_MULTI_QUEUE)?];
        // A `%d` in the name has been replaced by now.
        let name = queues.iter().map(Self::name).collect::<Result<String>>()?;
        for _ in 1..count {
            queues.push(Self::attach(&name, libc::IFF_MULTI_QUEUE)?);
        }
        Ok(queues)
    }

    /// Creates the persistent interface `name` in the network namespace of this thread for another
    /// program, such as a VM, which opens one queue or `several`. It stays until
    /// [`Tap::delete_persistent`]. It may already exist and be in use. An unused one with the other
    /// number of queues is replaced.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the name is invalid or that of another device, or when a program has
    /// the interface open with the other number of queues; otherwise as [`Tap::open`], except
    /// EBUSY.
    pub fn create_persistent(name: &str, several: bool) -> Result<()> {
        let flags = if several { libc::IFF_MULTI_QUEUE } else { 0 };
        if let Some(queues) = tun_queues(name)? {
            if queues.is_multi_queue == several {
                // Opening one more queue would divert frames from the program that has the others.
                if several && queues.open > 0 {
                    return Ok(());
                }
            } else if !Self::delete_persistent(name)? {
                let (now, needed) =
                    if several { ("one queue", "several") } else { ("several queues", "one") };
                return Err(Error::invalid(
                    format!("create TAP {name}"),
                    format!(
                        "a program has it open with {now}, but {needed} would be needed: \
                         stop that program"
                    ),
                ));
            }
        }
        match Self::attach(name, flags) {
            Ok(tap) => tap.set_persistent(name, true),
            Err(error) if error.errno() == Some(libc::EBUSY) => Ok(()),
            Err(error) if error.errno() == Some(libc::EINVAL) => Err(Error::invalid(
                format!("create TAP {name}"),
                "the name is used by an interface that is not a TAP: \
                 remove that interface, or choose another name",
            )),
            Err(error) => Err(error),
        }
    }

    /// Removes an interface of [`Tap::create_persistent`]. Returns false when a program has it
    /// open; then it stays.
    ///
    /// # Errors
    /// As [`Tap::open`], except EBUSY.
    pub fn delete_persistent(name: &str) -> Result<bool> {
        let flags = match tun_queues(name)? {
            Some(TunQueues { is_multi_queue: true, open: 1.. }) => return Ok(false),
            Some(TunQueues { is_multi_queue: true, open: 0 }) => libc::IFF_MULTI_QUEUE,
            _ => 0,
        };
        match Self::attach(name, flags) {
            // A program that has opened another queue meanwhile keeps the interface while it runs.
            Ok(tap) => tap.set_persistent(name, false).map(|()| true),
            Err(error) if error.errno() == Some(libc::EBUSY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn set_persistent(&self, name: &str, persistent: bool) -> Result<()> {
        // SAFETY: TUNSETPERSIST takes its flag by value.
        cvt_ioctl(unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(persistent))
        })
        .map(drop)
        .map_err(|e| Error::os(format!("set TAP {name} persistent to {persistent}"), e))
    }

    /// Creates the interface, or one more queue of it.
    fn attach(name: &str, flags: libc::c_int) -> Result<Self> {
        let what = || format!("create TAP {name}");
        let mut request = interface_request(name)?;
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags) as libc::c_short;
        let fd = open_control()?;
        // SAFETY: TUNSETIFF reads and writes one ifreq.
        cvt_ioctl(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request) })
            .map_err(|e| Error::os(what(), e))?;
        let len: libc::c_int = VNET_LEN as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int.
        cvt_ioctl(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &len) })
            .map_err(|e| Error::os(what(), e))?;
        let offload = |flags: libc::c_uint| {
            // SAFETY: TUNSETOFFLOAD takes its flags by value.
            cvt_ioctl(unsafe {
                libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags))
            })
        };
        // Linux before 6.2 refuses the whole set of flags because of the UDP ones.
        let udp_segmentation = offload(TUN_F_BASE | TUN_F_UDP_SEGMENT).is_ok();
        if !udp_segmentation {
            offload(TUN_F_BASE).map_err(|e| Error::os(what(), e))?;
        }
        Ok(Self { fd, udp_segmentation })
    }

    /// True when the guest may send UDP super-packets ([`packet::GsoKind::UdpL4`]; Linux 6.2).
    pub fn udp_segmentation(&self) -> bool {
        self.udp_segmentation
    }

    /// The current name of the interface, which may have been renamed.
    ///
    /// # Errors
    /// [`Error::Os`] when the interface no longer exists.
    pub fn name(&self) -> Result<String> {
        let mut request = interface_request("")?;
        // SAFETY: TUNGETIFF writes one ifreq.
        cvt_ioctl(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNGETIFF, &mut request) })
            .map_err(|e| Error::os("read the name of a TAP", e))?;
        let bytes = request.ifr_name.iter().take_while(|&&c| c != 0).map(|&c| c as u8);
        Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned())
    }

    /// The interface index. The *calling* thread must be in the namespace of the interface.
    ///
    /// # Errors
    /// [`Error::Os`] when the interface no longer exists or is in another namespace.
    pub fn ifindex(&self) -> Result<Ifindex> {
        let name = self.name()?;
        index_of(&name)
    }

    /// True if a frame waits, or a read would fail.
    pub fn has_frame(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) != Ok(0)
    }

    /// Reads the next frame that the guest sent into `packet`, after the default headroom, with its
    /// offload state. `None` when there is none. VLAN tags are part of the frame. `packet` should
    /// hold [`PacketBuf::MAX_FRAME`] bytes: the kernel truncates a longer frame silently.
    ///
    /// # Errors
    /// [`IoError::DeviceGone`] when the interface was deleted.
    #[inline]
    pub fn recv(&self, packet: &mut PacketBuf) -> IoResult<Option<()>> {
        self.recv_with_headroom(PacketBuf::HEADROOM, packet)
    }

    /// Like [`Tap::recv`], with another headroom, for a reader that then removes a header of its
    /// own.
    ///
    /// # Errors
    /// As [`Tap::recv`].
    #[inline]
    pub fn recv_with_headroom(
        &self,
        headroom: usize,
        packet: &mut PacketBuf,
    ) -> IoResult<Option<()>> {
        packet.reset(headroom);
        let mut header = [0; VNET_LEN];
        let parts = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(packet.spare_mut())];
        match sys::readv(self.fd.as_fd(), parts) {
            Ok(len) => {
                vnet::receive(packet, &header, len.saturating_sub(VNET_LEN))?;
                Ok(Some(()))
            }
            Err(libc::EAGAIN | libc::EINTR) => Ok(None),
            Err(errno) => Err(IoError::from_errno(errno)),
        }
    }

    /// Sends `packet` to the guest unchanged, including super-packets and partial checksums.
    ///
    /// # Errors
    /// [`IoError::LinkDown`] while the interface is down, [`IoError::Full`] when the kernel has no
    /// memory, [`IoError::TooBig`] above 1023 pieces, [`IoError::DeviceGone`] after the interface
    /// was deleted.
    #[inline]
    pub fn send(&self, packet: &PacketBuf) -> IoResult<()> {
        let mut header = [0; VNET_LEN];
        vnet::encode(packet, &mut header)?;
        let mut parts = IoSlices::new();
        if !parts.push(&header) || !parts.extend(packet.pieces()) {
            return Err(IoError::TooBig);
        }
        match sys::writev(self.fd.as_fd(), parts.as_slice()) {
            Ok(_) => Ok(()),
            // The TUN driver returns EIO while the interface is down.
            Err(libc::EIO) => Err(IoError::LinkDown),
            Err(errno) => Err(IoError::from_errno(errno)),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The index of the interface `name` in the namespace of this thread.
pub(crate) fn index_of(name: &str) -> Result<Ifindex> {
    let what = || format!("look up link {name}");
    let text = std::ffi::CString::new(name)
        .map_err(|_| Error::invalid(what(), "a name cannot contain a zero byte"))?;
    // SAFETY: `text` is a C string.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(Error::last_os(what())),
        index => Ok(Ifindex(index)),
    }
}

/// The queues of the interface `name` if it is a TUN or TAP device.
fn tun_queues(name: &str) -> Result<Option<TunQueues>> {
    match Netlink::open()?.link(name) {
        Ok(link) => Ok(link.tun_queues),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_control() -> Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map(OwnedFd::from)
        .map_err(|e| Error::os("open /dev/net/tun", e))
}

fn interface_request(name: &str) -> Result<libc::ifreq> {
    // SAFETY: an ifreq consists of integers, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.bytes().any(|b| b == 0 || b == b'/') {
        let what = format!("create TAP {name}");
        return Err(Error::invalid(what, "an interface name has 1 to 15 bytes, no slash"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn cvt_ioctl(ret: libc::c_int) -> std::io::Result<libc::c_int> {
    if ret < 0 { Err(std::io::Error::last_os_error()) } else { Ok(ret) }
}
