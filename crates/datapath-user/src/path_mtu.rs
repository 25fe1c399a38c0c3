//! Path MTU discovery for tunnels: listens for ICMP errors from routers of the underlay (RFC 1191,
//! RFC 8201).
//!
//! An error is accepted only if it quotes a packet that this host could have sent: from a local
//! address to an end point, with that tunnel's protocol and ports. The discovered MTU expires after
//! ten minutes (RFC 1191 section 6.3), because the path may have changed.

use super::fast_path::PathMtu;
use datapath::config::EndpointConfig;
use flow::{EndpointId, TunnelSpec};
use netdev::icmp::TooBigSocket;
use netdev::{Error, Ifindex};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};
use wire::icmp::{Quoted, TooBig};

/// How long a discovered path MTU is valid.
const MAX_AGE: Duration = Duration::from_secs(600);
/// ICMP errors handled at a time.
const BATCH: usize = 64;

/// The sockets that receive ICMP errors, and the path MTUs discovered.
#[derive(Debug)]
pub(super) struct PathMtuDiscovery {
    sockets: Vec<(IpAddr, TooBigSocket)>,
    /// Outer source ports of UDP and STT.
    source_ports: Range<u32>,
    /// The end points by local and remote address.
    endpoints: HashMap<(IpAddr, IpAddr), Vec<(EndpointId, TunnelSpec)>>,
    found: HashMap<EndpointId, (u16, Instant)>,
}

impl PathMtuDiscovery {
    /// Starts without any knowledge. `source_ports` is the range of outer source ports.
    pub(super) fn new(source_ports: Range<u32>) -> Self {
        let (endpoints, found) = (HashMap::new(), HashMap::new());
        Self { sockets: Vec::new(), source_ports, endpoints, found }
    }

    /// Opens the sockets for these end points on the device `uplink`, and forgets other end points.
    ///
    /// # Errors
    /// A socket cannot be opened; the path MTUs of its local address are not discovered.
    pub(super) fn follow(
        &mut self,
        endpoints: &[EndpointConfig],
        uplink: Ifindex,
    ) -> Result<(), Error> {
        self.endpoints.clear();
        for &EndpointConfig { id, spec, local, remote } in endpoints {
            self.endpoints.entry((local, remote)).or_default().push((id, spec));
        }
        let ids: std::collections::HashSet<EndpointId> = endpoints.iter().map(|e| e.id).collect();
        self.found.retain(|id, _| ids.contains(id));
        self.sockets.clear();
        let mut locals: Vec<IpAddr> = self.endpoints.keys().map(|(local, _)| *local).collect();
        locals.sort_unstable();
        locals.dedup();
        for local in locals {
            self.sockets.push((local, TooBigSocket::open(local, Some(uplink))?));
        }
        Ok(())
    }

    /// The sockets to poll, each with the number to pass to [`receive`](Self::receive).
    pub(super) fn sockets(&self) -> impl Iterator<Item = (usize, &TooBigSocket)> {
        self.sockets.iter().map(|(_, socket)| socket).enumerate()
    }

    /// Reads ICMP errors from a socket; returns the changes of path MTUs.
    pub(super) fn receive(&mut self, number: usize, now: Instant) -> Vec<PathMtu> {
        let mut changes = Vec::new();
        let Some((_, socket)) = self.sockets.get(number) else { return changes };
        let messages = std::iter::from_fn(|| socket.recv().ok().flatten()).take(BATCH);
        for message in messages.collect::<Vec<_>>() {
            self.handle(&message, now, &mut changes);
        }
        changes
    }

    fn handle(&mut self, message: &TooBig, now: Instant, changes: &mut Vec<PathMtu>) {
        let candidates = self.endpoints.get(&(message.local, message.remote)).into_iter().flatten();
        let quoted = candidates.filter(|(_, spec)| is_quoted(spec, message, &self.source_ports));
        for (id, _) in quoted {
            let known = self.found.get(id).copied();
            // A larger MTU is accepted only after the smaller one has expired.
            if known.is_none_or(|(mtu, _)| message.mtu <= mtu) {
                self.found.insert(*id, (message.mtu, now));
            }
            if known.is_none_or(|(mtu, _)| message.mtu < mtu) {
                tracing::info!(remote = %message.remote, mtu = message.mtu, "path MTU is lower");
                changes.push((*id, Some(message.mtu)));
            }
        }
    }

    /// Removes expired path MTUs; returns them as changes.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<PathMtu> {
        let is_old = |_: &EndpointId, (_, found): &mut (u16, Instant)| {
            now.saturating_duration_since(*found) > MAX_AGE
        };
        self.found.extract_if(is_old).map(|(id, _)| (id, None)).collect()
    }

    /// All discovered path MTUs.
    pub(super) fn all(&self) -> Vec<PathMtu> {
        self.found.iter().map(|(id, (mtu, _))| (*id, Some(*mtu))).collect()
    }
}

/// True if the packet that the error quotes belongs to a tunnel with this specification.
fn is_quoted(spec: &TunnelSpec, message: &TooBig, source_ports: &Range<u32>) -> bool {
    spec.tunnel.carrier().protocol() == Some(message.protocol)
        && match message.quoted {
            Quoted::Ports { src, dst } => dst == spec.port && source_ports.contains(&src.into()),
            Quoted::Gre { .. } => true,
            Quoted::Other => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::Dscp;
    use flow::TunnelType;
    use wire::Protocol;

    fn paths() -> PathMtuDiscovery {
        let mut paths = PathMtuDiscovery::new(49_152..49_216);
        let spec = |tunnel, port| TunnelSpec {
            tunnel,
            port,
            checksum: true,
            ttl: flow::Ttl::default(),
            dscp: Dscp::Inherit,
            key: false,
            sequence: false,
            path_mtu_bytes: 1500,
            clamp_mss: false,
        };
        let ends = [
            (EndpointId(0), spec(TunnelType::Vxlan, 4789)),
            (EndpointId(1), spec(TunnelType::Stt, 7471)),
            (EndpointId(2), spec(TunnelType::Gre, 0)),
        ];
        paths.endpoints.insert((host(1), host(2)), ends.to_vec());
        paths
    }

    fn host(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn message(mtu: u16, protocol: Protocol, quoted: Quoted) -> TooBig {
        TooBig { mtu, local: host(1), remote: host(2), protocol, quoted }
    }

    #[test]
    fn error_changes_only_the_tunnel_that_it_quotes() {
        let vxlan = Quoted::Ports { src: 49_160, dst: 4789 };
        let forged = Quoted::Ports { src: 53, dst: 4789 };
        let cases = [
            (message(1400, Protocol::UDP, vxlan), vec![(EndpointId(0), Some(1400))]),
            (message(1400, Protocol::UDP, forged), vec![]),
            (message(1400, Protocol::TCP, vxlan), vec![]),
            (
                message(1400, Protocol::GRE, Quoted::Gre { key: None }),
                vec![(EndpointId(2), Some(1400))],
            ),
            (message(1400, Protocol::UDP, Quoted::Other), vec![]),
            (TooBig { remote: host(3), ..message(1400, Protocol::UDP, vxlan) }, vec![]),
        ];
        for (message, expected) in cases {
            let mut changes = Vec::new();
            paths().handle(&message, Instant::now(), &mut changes);
            assert_eq!(changes, expected, "{message:?}");
        }
    }

    #[test]
    fn lowest_path_mtu_is_valid_for_ten_minutes() {
        let (mut paths, start) = (paths(), Instant::now());
        let mut said = |mtu, minutes: u64| {
            let mut changes = Vec::new();
            let quoted = Quoted::Ports { src: 49_152, dst: 7471 };
            let now = start + Duration::from_secs(minutes * 60);
            paths.handle(&message(mtu, Protocol::TCP, quoted), now, &mut changes);
            changes.into_iter().chain(paths.expire(now)).map(|(_, mtu)| mtu).collect::<Vec<_>>()
        };
        assert_eq!(said(1400, 0), [Some(1400)]);
        assert_eq!(said(1450, 1), []);
        assert_eq!(said(1300, 2), [Some(1300)]);
        assert_eq!(said(1300, 11), [], "a repeated error extends the time");
        assert_eq!(said(1450, 22), [None]);
    }
}
