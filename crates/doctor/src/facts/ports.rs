//! Sockets and devices that occupy the ports and protocols of tunnels.

use flow::TunnelType;
use netdev::capability::{self, Capability};
use netdev::{Link, Netlink, Result};
use std::fs;
use std::path::Path;

/// A socket that receives packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundSocket {
    /// The IP protocol: 17 for UDP, 6 for TCP, otherwise the protocol of a raw socket.
    pub protocol: u8,
    /// The port; 0 for a raw socket.
    pub port: u16,
    /// The inode, which identifies the owner; 0 for a socket of the kernel itself.
    pub inode: u64,
}

/// A tunnel device of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelDevice {
    /// Its name.
    pub name: String,
    /// `vxlan`, `geneve`, `gretap` ...
    pub kind: String,
    /// The UDP port that it receives on.
    pub port: Option<u16>,
    /// It is up. A device that is down does not receive.
    pub up: bool,
}

/// The sockets and devices that receive tunnels.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TunnelListeners {
    /// The sockets.
    pub sockets: Vec<BoundSocket>,
    /// The tunnel devices.
    pub devices: Vec<TunnelDevice>,
    /// The owners of the sockets: inode, process ID, program name. Without CAP_SYS_PTRACE, the
    /// processes of other users are missing.
    pub programs: Vec<(u64, u32, String)>,
    /// This process may read the owners of all sockets.
    pub sees_all_processes: bool,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const LISTEN: &str = "0A";

/// The registered ports of all tunnel types that have one.
pub fn registered_ports() -> impl Iterator<Item = u16> {
    let ports = TunnelType::ALL.into_iter().map(|tunnel| tunnel.descriptor().default_port);
    ports.filter(|port| *port != 0)
}

impl TunnelListeners {
    /// Reads the sockets of the calling thread's namespace, and the owners of those on `ports`.
    pub fn read(ports: &[u16]) -> Result<Self> {
        let folder = Path::new("/proc/thread-self/net");
        let mut sockets = Vec::new();
        for (file, protocol) in
            [("udp", UDP), ("udp6", UDP), ("tcp", TCP), ("tcp6", TCP), ("raw", 0), ("raw6", 0)]
        {
            let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
            sockets.extend(text.lines().filter_map(|line| socket(line, protocol)));
        }
        sockets.retain(|socket| match socket.protocol {
            TCP | UDP => ports.contains(&socket.port),
            _ => true,
        });
        let devices = Netlink::open()?.links()?.into_iter().filter_map(device).collect();
        let inodes: Vec<u64> = sockets.iter().map(|socket| socket.inode).collect();
        let sees_all_processes = capability::missing(&[Capability::CAP_SYS_PTRACE]).is_none();
        Ok(Self { sockets, devices, programs: programs(&inodes), sees_all_processes })
    }

    /// The process ID and name of the program that owns a socket.
    pub fn program(&self, inode: u64) -> Option<(u32, &str)> {
        let found = self.programs.iter().find(|(known, _, _)| *known == inode && inode != 0)?;
        Some((found.1, &found.2))
    }
}

/// Parses a line of `/proc/net/udp` or a similar file: number, local address and port, remote,
/// state, ..., inode. `protocol` is 0 for raw sockets, whose port field holds their protocol.
fn socket(line: &str, protocol: u8) -> Option<BoundSocket> {
    let mut fields = line.split_ascii_whitespace();
    let (_, port) = fields.nth(1)?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?.parse().ok()?;
    match protocol {
        0 => Some(BoundSocket { protocol: u8::try_from(port).ok()?, port: 0, inode }),
        TCP if state != LISTEN => None,
        protocol => Some(BoundSocket { protocol, port, inode }),
    }
}

fn device(link: Link) -> Option<TunnelDevice> {
    let kind = link.kind?;
    let is_tunnel = matches!(
        kind.as_str(),
        "vxlan" | "geneve" | "gre" | "gretap" | "ip6gre" | "ip6gretap" | "erspan"
    );
    is_tunnel.then_some(TunnelDevice { name: link.name, kind, port: link.tunnel_port, up: link.up })
}

/// The processes that own these sockets.
fn programs(inodes: &[u64]) -> Vec<(u64, u32, String)> {
    let mut found = Vec::new();
    if inodes.iter().all(|inode| *inode == 0) {
        return found;
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        for fd in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(fd.path()) else { continue };
            let inode = target
                .to_str()
                .and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| inodes.contains(inode)) {
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                found.push((inode, pid, name.trim().to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_as_the_kernel_lists_them() {
        let udp = "  512: 00000000:12B5 00000000:0000 07 00000000:00000000 00:00000000 \
                   00000000     0        0 0 2 ff11 0";
        assert_eq!(socket(udp, UDP), Some(BoundSocket { protocol: 17, port: 4789, inode: 0 }));
        let raw = "   47: 0100000A:002F 00000000:0000 07 00000000:00000000 00:00000000 \
                   00000000     0        0 4711 2 ff22 0";
        assert_eq!(socket(raw, 0), Some(BoundSocket { protocol: 47, port: 0, inode: 4711 }));
        let tcp = "   0: 00000000:1D2F 00000000:0000 0A 00000000:00000000 00:00000000 \
                   00000000     0        0 99 1 f 100 0 0 10 0";
        assert_eq!(socket(tcp, TCP), Some(BoundSocket { protocol: 6, port: 7471, inode: 99 }));
        assert_eq!(socket(&tcp.replace(" 0A ", " 01 "), TCP), None, "a connection is no listener");
        assert_eq!(socket("  sl  local_address rem_address   st tx_queue", UDP), None);
    }
}
