//! Makes the kernel's GRO join the segments inside VXLAN before eBPF programs see them
//! (docs/adr/0014).
//!
//! GRO joins TCP segments inside UDP only if a tunnel device of the kernel owns the UDP port. So a
//! VXLAN device owns the tunnel's port and does nothing else. Programs redirect the datagrams that
//! they do not forward to the user datapath's sockets at another port. If the kernel has no VXLAN
//! device, or the port is in use, segments are not joined, and the sockets are at the tunnel's own
//! port.

use netdev::{Error, Link, LinkKind, LinkSpec, Netlink, VxlanSpec};
use wire::MacAddr;

const NAME: &str = "weft-gro";
/// The MAC address of the device. It distinguishes the device from another with its name.
const ADDRESS: MacAddr = MacAddr([2, b'w', b'e', b'f', b't', 0xff]);

/// Makes a VXLAN device that owns the UDP port, or adopts the one that a killed process has left.
pub(crate) fn provide(netlink: &Netlink, port: u16) -> Result<(), Error> {
    if let Some(link) = find(netlink)? {
        if link.tunnel_port == Some(port) && link.up {
            return Ok(());
        }
        netlink.delete(link.index)?;
    }
    // The device drops datagrams that no program has redirected: with `vnifilter` and no VNI, none
    // reaches the host's stack.
    let kind = LinkKind::Vxlan(VxlanSpec { port, filters_vnis: true, ..VxlanSpec::external() });
    let index = netlink.create(&LinkSpec::new(NAME).mac(ADDRESS), &kind)?;
    netdev::silence_host_stack(NAME).and_then(|()| netlink.set_up(index)).inspect_err(|_| {
        // The first error is the one to report.
        let _ = netlink.delete(index);
    })
}

/// Removes the device. True if it existed.
pub(crate) fn remove(netlink: &Netlink) -> Result<bool, Error> {
    let Some(link) = find(netlink)? else { return Ok(false) };
    match netlink.delete(link.index) {
        Err(error) if error.is_not_found() => Ok(false),
        result => result.map(|()| true),
    }
}

/// True if the device exists and owns its port.
pub(crate) fn is_up(netlink: &Netlink) -> Result<bool, Error> {
    Ok(find(netlink)?.is_some_and(|link| link.up))
}

fn find(netlink: &Netlink) -> Result<Option<Link>, Error> {
    match netlink.link(NAME) {
        Ok(link) => {
            let is_ours = link.mac == ADDRESS && link.kind.as_deref() == Some("vxlan");
            Ok(is_ours.then_some(link))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use testkit::host::TestHost;

    fn provide_in(host: &TestHost, port: u16) -> Result<(), Error> {
        host.run(|| provide(&Netlink::open()?, port))
    }

    #[test]
    fn device_owns_the_port_until_it_is_removed() {
        testkit::require_root!();
        let host = TestHost::new("gro");
        let netlink = host.netlink();
        provide_in(&host, 4789).and_then(|()| provide_in(&host, 4789)).unwrap();
        let first = netlink.link(NAME).unwrap();
        assert!(first.up && first.tunnel_port == Some(4789), "{first:?}");
        provide_in(&host, 4790).unwrap();
        assert_eq!(netlink.link(NAME).unwrap().tunnel_port, Some(4790));
        assert!(is_up(netlink).unwrap());
        assert!(remove(netlink).unwrap() && !remove(netlink).unwrap());
        assert!(!is_up(netlink).unwrap());
    }

    #[test]
    fn host_receives_nothing_from_the_tunnel_when_no_program_redirects_it() {
        testkit::require_root!();
        let host = TestHost::new("gro-filter");
        let netlink = host.netlink();
        provide_in(&host, VxlanSpec::PORT).unwrap();
        netlink.set_up(netlink.index_of("lo").unwrap()).unwrap();
        let mut datagram = vec![8, 0, 0, 0, 0, 0, 7, 0];
        datagram.extend(ADDRESS.0);
        datagram.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45]);
        datagram.resize(8 + 64, 0);
        let received = || {
            let to = ("127.0.0.1", VxlanSpec::PORT);
            host.run(|| UdpSocket::bind("127.0.0.1:0")?.send_to(&datagram, to)).unwrap();
            netlink.links().unwrap().iter().map(|link| link.stats.rx_packets).collect::<Vec<_>>()
        };
        let before = received();
        let [lo, ours] = before[..] else { panic!("{before:?}") };
        assert_eq!([lo, ours], [1, 0]);
        // A device without the filter does deliver it.
        netlink.delete(netlink.index_of(NAME).unwrap()).unwrap();
        let open = LinkSpec::new(NAME).mac(ADDRESS).up();
        netlink.create(&open, &LinkKind::Vxlan(VxlanSpec::external())).unwrap();
        assert_eq!(received()[1], 1);
    }

    #[test]
    fn foreign_device_stays_when_it_has_the_name_or_the_port() {
        testkit::require_root!();
        let host = TestHost::new("gro-taken");
        let netlink = host.netlink();
        let theirs = VxlanSpec { port: 4789, ..VxlanSpec::external() };
        let index = netlink.create(&LinkSpec::new("vx"), &LinkKind::Vxlan(theirs.clone())).unwrap();
        netlink.set_up(index).unwrap();
        assert!(provide_in(&host, 4789).is_err());
        assert!(netlink.link(NAME).unwrap_err().is_not_found(), "the device was removed again");
        netlink.delete(index).unwrap();
        netlink.create(&LinkSpec::new(NAME), &LinkKind::Vxlan(theirs)).unwrap();
        assert!(provide_in(&host, 4789).is_err());
        assert!(!remove(netlink).unwrap() && netlink.link(NAME).is_ok());
    }
}
