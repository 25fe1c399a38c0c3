//! What the paths to end points carry, as routers of the underlay tell it (RFC 1191, RFC 8201).
//!
//! A message is believed when it quotes a packet that this host could have sent: from an address of its own to an end point,
//! with that tunnel's protocol and ports. It is forgotten after ten minutes (RFC 1191 section 6.3), because the path may have
//! become wider.

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

/// How long a message counts.
const MAX_AGE: Duration = Duration::from_secs(600);
/// Messages heeded at once; each costs the workers a request.
const BATCH: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct PathMtus {
    sockets: Vec<(IpAddr, TooBigSocket)>,
    /// Outer source ports of UDP and STT.
    source_ports: Range<u32>,
    /// The end points between two addresses.
    between: HashMap<(IpAddr, IpAddr), Vec<(EndpointId, TunnelSpec)>>,
    found: HashMap<EndpointId, (u16, Instant)>,
}

impl PathMtus {
    /// Nothing is known. `source_ports` are those that tunnels are sent from.
    pub(super) fn new(source_ports: Range<u32>) -> Self {
        let (between, found) = (HashMap::new(), HashMap::new());
        Self { sockets: Vec::new(), source_ports, between, found }
    }

    /// Listens for what is said about these end points, to be heard on the device `uplink`. What was found of others is
    /// forgotten.
    ///
    /// # Errors
    /// A socket cannot be opened: nothing is heard for that address.
    pub(super) fn follow(
        &mut self,
        endpoints: &[EndpointConfig],
        uplink: Ifindex,
    ) -> Result<(), Error> {
        self.between.clear();
        for &EndpointConfig { id, spec, local, remote } in endpoints {
            self.between.entry((local, remote)).or_default().push((id, spec));
        }
        let ids: std::collections::HashSet<EndpointId> = endpoints.iter().map(|e| e.id).collect();
        self.found.retain(|id, _| ids.contains(id));
        self.sockets.clear();
        let mut locals: Vec<IpAddr> = self.between.keys().map(|(local, _)| *local).collect();
        locals.sort_unstable();
        locals.dedup();
        for local in locals {
            self.sockets.push((local, TooBigSocket::open(local, Some(uplink))?));
        }
        Ok(())
    }

    /// What to wait for, by a number that [`receive`](Self::receive) takes.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (usize, &TooBigSocket)> {
        self.sockets.iter().map(|(_, socket)| socket).enumerate()
    }

    /// Reads what has been said; returns what is new.
    pub(super) fn receive(&mut self, number: usize, now: Instant) -> Vec<PathMtu> {
        let mut news = Vec::new();
        let Some((_, socket)) = self.sockets.get(number) else { return news };
        let messages = std::iter::from_fn(|| socket.recv().ok().flatten()).take(BATCH);
        for message in messages.collect::<Vec<_>>() {
            self.heed(&message, now, &mut news);
        }
        news
    }

    fn heed(&mut self, message: &TooBig, now: Instant, news: &mut Vec<PathMtu>) {
        let between = self.between.get(&(message.local, message.remote)).into_iter().flatten();
        let quoted = between.filter(|(_, spec)| is_of(spec, message, &self.source_ports));
        for (id, _) in quoted {
            let known = self.found.get(id).copied();
            // A wider path shows when the narrower one is forgotten.
            if known.is_none_or(|(mtu, _)| message.mtu <= mtu) {
                self.found.insert(*id, (message.mtu, now));
            }
            if known.is_none_or(|(mtu, _)| message.mtu < mtu) {
                tracing::info!(remote = %message.remote, mtu = message.mtu, "path is narrower");
                news.push((*id, Some(message.mtu)));
            }
        }
    }

    /// Forgets what is too old; returns it.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<PathMtu> {
        let is_old = |_: &EndpointId, (_, found): &mut (u16, Instant)| {
            now.saturating_duration_since(*found) > MAX_AGE
        };
        self.found.extract_if(is_old).map(|(id, _)| (id, None)).collect()
    }

    /// All that is known.
    pub(super) fn all(&self) -> Vec<PathMtu> {
        self.found.iter().map(|(id, (mtu, _))| (*id, Some(*mtu))).collect()
    }
}

/// True when the packet that a message quotes is of a tunnel of this kind.
fn is_of(spec: &TunnelSpec, message: &TooBig, source_ports: &Range<u32>) -> bool {
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

    fn paths() -> PathMtus {
        let mut paths = PathMtus::new(49_152..49_216);
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
        paths.between.insert((host(1), host(2)), ends.to_vec());
        paths
    }

    fn host(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn message(mtu: u16, protocol: Protocol, quoted: Quoted) -> TooBig {
        TooBig { mtu, local: host(1), remote: host(2), protocol, quoted }
    }

    #[test]
    fn message_counts_for_the_tunnel_that_it_quotes_and_no_other() {
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
            let mut news = Vec::new();
            paths().heed(&message, Instant::now(), &mut news);
            assert_eq!(news, expected, "{message:?}");
        }
    }

    #[test]
    fn narrowest_counts_until_it_is_ten_minutes_old() {
        let (mut paths, start) = (paths(), Instant::now());
        let mut said = |mtu, minutes: u64| {
            let mut news = Vec::new();
            let quoted = Quoted::Ports { src: 49_152, dst: 7471 };
            let now = start + Duration::from_secs(minutes * 60);
            paths.heed(&message(mtu, Protocol::TCP, quoted), now, &mut news);
            news.into_iter().chain(paths.expire(now)).map(|(_, mtu)| mtu).collect::<Vec<_>>()
        };
        assert_eq!(said(1400, 0), [Some(1400)]);
        assert_eq!(said(1450, 1), []);
        assert_eq!(said(1300, 2), [Some(1300)]);
        assert_eq!(said(1300, 11), [], "the same again keeps it");
        assert_eq!(said(1450, 22), [None]);
    }
}
