//! [`SocketFilter`]: classic BPF programs that select in the kernel which packets a socket
//! receives.
//!
//! Each program has about a dozen instructions and is assembled by this module. The kernel verifies
//! and compiles it when it is attached.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use crate::{Error, Result};

const ACCEPT: u32 = u32::MAX;
const REJECT: u32 = 0;

const LD_B: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LD_H: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LD_W: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// X = 4 * (byte & 0xf): the length of an IPv4 header from its first byte.
const LDX_IHL: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const LD_H_X: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RET: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const VLAN_TAG_PRESENT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
/// PACKET_HOST: the destination MAC address is the interface's own.
const PACKET_HOST: u32 = 0;

/// A classic BPF program for sockets.
#[derive(Debug, Clone)]
pub struct SocketFilter {
    program: Vec<libc::sock_filter>,
}

impl SocketFilter {
    /// Receives nothing: for sockets that only send, or only reserve a port or protocol.
    pub fn nothing() -> Self {
        Self { program: vec![op(RET, REJECT)] }
    }

    /// Receives everything.
    pub fn everything() -> Self {
        Self { program: vec![op(RET, ACCEPT)] }
    }

    /// Receives, on a packet socket, only frames with a VLAN tag: one that the kernel moved to the
    /// metadata, or one in the frame with TPID 0x8100, 0x88a8 or 0x9100.
    pub fn vlan_tagged() -> Self {
        let program = vec![
            op(LD_W, VLAN_TAG_PRESENT),
            jump(1, 5, 0),
            op(LD_H, 12),
            jump(0x8100, 3, 0),
            jump(0x88a8, 2, 0),
            jump(0x9100, 1, 0),
            op(RET, REJECT),
            op(RET, ACCEPT),
        ];
        Self { program }
    }

    /// Receives, on a packet socket, only untagged TCP segments for this host's MAC address, the IP
    /// address `local` and port `dst_port`; no IPv4 fragments, no IPv6 extension headers. For STT.
    pub fn tcp_to(local: IpAddr, dst_port: u16) -> Self {
        let mut conditions = ip_to(local, libc::IPPROTO_TCP as u8);
        if local.is_ipv4() {
            // More-fragments flag and fragment offset: a fragment may have no port.
            conditions.push((vec![op(LD_H, 14 + 6), op(AND, 0x3fff)], 0));
        }
        let port = match local {
            // The port follows an IPv4 header of variable length.
            IpAddr::V4(_) => vec![op(LDX_IHL, 14), op(LD_H_X, 14 + 2)],
            IpAddr::V6(_) => vec![op(LD_H, 14 + 40 + 2)],
        };
        conditions.push((port, u32::from(dst_port)));
        Self::all_of(conditions)
    }

    /// Receives, on a packet socket, only untagged packets of IP protocol `protocol` for this
    /// host's MAC address and the IP address `local`. IPv4 fragments are included, so that the
    /// receiver can count them; IPv6 extension headers are not. For GRE.
    pub fn protocol_to(local: IpAddr, protocol: u8) -> Self {
        Self::all_of(ip_to(local, protocol))
    }

    /// A program that accepts packets that meet all conditions. A condition consists of
    /// instructions that load the accumulator, and the value expected there.
    fn all_of(conditions: Vec<Condition>) -> Self {
        let mut program = Vec::new();
        for (load, expected) in conditions {
            program.extend(load);
            program.push(jump(expected, 0, 0));
        }
        let reject = program.len() + 1;
        for (at, instruction) in program.iter_mut().enumerate() {
            if instruction.code == JEQ {
                // A jump spans at most 255 instructions; these programs are far shorter.
                instruction.jf = (reject - at - 1) as u8;
            }
        }
        program.push(op(RET, ACCEPT));
        program.push(op(RET, REJECT));
        Self { program }
    }

    /// Replaces the filter of `socket`. Packets that are already queued stay.
    ///
    /// # Errors
    /// [`Error::Os`]: ENOMEM above `net.core.optmem_max`, EPERM on a locked filter.
    pub fn attach(&self, socket: impl AsFd) -> Result<()> {
        let program = libc::sock_fprog {
            len: self.program.len() as libc::c_ushort,
            filter: self.program.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel reads one sock_fprog and the `len` instructions it points to, both
        // alive here.
        let ret = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                std::ptr::from_ref(&program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        if ret < 0 { Err(Error::last_os("attach a socket filter")) } else { Ok(()) }
    }
}

type Condition = (Vec<libc::sock_filter>, u32);

/// The conditions for an untagged IP packet of `protocol` for this host's MAC and IP address.
fn ip_to(local: IpAddr, protocol: u8) -> Vec<Condition> {
    let mut conditions =
        vec![(vec![op(LD_W, PACKET_TYPE)], PACKET_HOST), (vec![op(LD_W, VLAN_TAG_PRESENT)], 0)];
    match local {
        IpAddr::V4(address) => conditions.extend([
            (vec![op(LD_H, 12)], libc::ETH_P_IP as u32),
            (vec![op(LD_B, 14 + 9)], u32::from(protocol)),
            (vec![op(LD_W, 14 + 16)], u32::from(address)),
        ]),
        IpAddr::V6(address) => {
            conditions.push((vec![op(LD_H, 12)], libc::ETH_P_IPV6 as u32));
            conditions.push((vec![op(LD_B, 14 + 6)], u32::from(protocol)));
            let bits = u128::from(address);
            for (word, shift) in [96, 64, 32, 0].into_iter().enumerate() {
                let offset = 14 + 24 + 4 * word as u32;
                conditions.push((vec![op(LD_W, offset)], (bits >> shift) as u32));
            }
        }
    }
    conditions
}

const fn op(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

const fn jump(k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: JEQ, jt, jf, k }
}
