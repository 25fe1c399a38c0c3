//! [`Lab`]: the programs attached to veth pairs.

use super::abi;
use super::switch::{PUNT_HEADER_LEN, Switch, guest, offsets, read_punt_header};
use flow::PortNo;
use libbpf_rs::{TC_INGRESS, TcHookBuilder};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::{LinkKind, LinkSpec};
use packet::{Checksum, PacketBuf, complete_checksum};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};
use testkit::host::TestHost;
use wire::vlan::Tag;
use wire::{EtherType, MacAddr};

pub const MTU: u32 = 65_535;
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A veth pair where frames enter or leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    Vif,
    Peer,
    Device,
    Uplink,
    Punt,
}

pub const WIRES: [(Wire, &str); 5] = [
    (Wire::Vif, "vif"),
    (Wire::Peer, "peer"),
    (Wire::Device, "device"),
    (Wire::Uplink, "uplink"),
    (Wire::Punt, "punt"),
];

pub struct Lab {
    pub switch: Switch,
    ends: Vec<(Wire, PacketSocket)>,
    buffer: PacketBuf,
    /// The last field, so that the namespaces are removed last.
    pub hosts: [TestHost; 2],
}

impl Lab {
    pub fn new() -> Self {
        let (inside, outside) = (TestHost::new("inside"), TestHost::new("outside"));
        for host in [&inside, &outside] {
            host.sysctl("net/ipv6/conf/default/disable_ipv6", "1").expect("a setting");
        }
        let switch = Switch::load();
        let mut ends = Vec::new();
        for (wire, name) in WIRES {
            let mac = if wire == Wire::Peer { Switch::GUEST } else { [2, 0, 0, 0, 9, 9] };
            let peer = LinkSpec::new(name).mac(MacAddr(mac)).mtu(MTU).netns(&outside).up();
            let own = LinkSpec::new(name).mtu(MTU).up();
            inside.netlink().create(&own, &LinkKind::Veth { peer }).expect("a veth pair");
            let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
            let socket = outside.run(|| {
                PacketSocket::open_name(name, &SocketFilter::everything(), options)
                    .expect("a socket")
            });
            ends.push((wire, socket));
            let index = inside.netlink().index_of(name).expect("it is there").0;
            let [vif, uplink] = switch.programs();
            match wire {
                Wire::Vif => {
                    switch.set_device(index, Switch::VIF);
                    switch.set_port(Switch::VIF, index, 0, 0);
                    inside.run(|| attach(vif, index));
                }
                Wire::Peer => switch.set_port(Switch::PEER, index, abi::WEFT_PORT_PEER, guest()),
                // Super-packets from tunnels are only delivered to veth pairs.
                Wire::Device => switch.set_port(Switch::DEVICE, index, abi::WEFT_PORT_PEER, 0),
                Wire::Uplink => {
                    switch.configure(offsets::UPLINK_IFINDEX, &index.to_ne_bytes());
                    inside.run(|| attach(uplink, index));
                }
                Wire::Punt => {
                    inside.run(|| switch.punt_to(Some(index)));
                }
            }
        }
        let buffer = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        Self { switch, ends, buffer, hosts: [inside, outside] }
    }

    pub fn send(&self, wire: Wire, packet: &PacketBuf) {
        let (_, end) = self.ends.iter().find(|(end, _)| *end == wire).expect("it is one of them");
        end.send(packet).unwrap_or_else(|error| panic!("{error}: {packet:?}"));
    }

    /// Loops frames that leave by the uplink back to it, as if another host had sent them.
    pub fn loop_uplink(&self) {
        let [inside, _] = &self.hosts;
        let peer = LinkSpec::new("loop1").mtu(MTU).up();
        let own = LinkSpec::new("loop0").mtu(MTU).up();
        inside.netlink().create(&own, &LinkKind::Veth { peer }).expect("a veth pair");
        let [own, peer] = ["loop0", "loop1"].map(|name| inside.netlink().index_of(name));
        let [own, peer] = [own, peer].map(|index| index.expect("it is there").0);
        self.switch.configure(offsets::UPLINK_IFINDEX, &own.to_ne_bytes());
        let [_, uplink] = self.switch.programs();
        inside.run(|| attach(uplink, peer));
    }

    /// The next frame that leaves by any of the wires, with its tags.
    pub fn receive(&mut self, patience: Duration) -> Option<(Wire, PacketBuf)> {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            for (wire, end) in &self.ends {
                if let Some(received) = end.recv(&mut self.buffer).expect("the wire is there") {
                    if let Some(tag) = received.vlan {
                        let tag = Tag::from_tci(EtherType(tag.tpid), tag.tci);
                        flow::push_vlan(&mut self.buffer, tag).expect("there is headroom");
                    }
                    return Some((*wire, self.buffer.clone()));
                }
            }
            thread::sleep(Duration::from_micros(50));
        }
        None
    }
}

pub fn attach(program: BorrowedFd<'_>, index: u32) {
    let mut hook = TcHookBuilder::new(program).ifindex(index.cast_signed()).hook(TC_INGRESS);
    hook.create().and_then(|mut hook| hook.attach()).expect("the program can be attached");
}

/// The properties of a frame that tests compare.
pub fn comparable(packet: &PacketBuf) -> (Vec<u8>, Option<packet::Gso>) {
    let mut packet = packet.clone();
    let gso = packet.offload.gso;
    if gso.is_none() && packet.offload.checksum != Checksum::Unverified {
        let _ = complete_checksum(&mut packet);
    }
    (packet.to_vec(), gso)
}

/// Port and frame of a punted frame, with the tag that was in metadata.
pub fn punted(packet: &PacketBuf) -> (PortNo, PacketBuf) {
    let mut packet = packet.clone();
    let tag = flow::pop_vlan(&mut packet);
    let header = *packet.head().first_chunk().expect("it has a header");
    let port = read_punt_header(&header).expect("it is a punt header");
    packet.pull_front(PUNT_HEADER_LEN);
    if let Some(tag) = tag {
        flow::push_vlan(&mut packet, tag).expect("there is headroom");
    }
    (port, packet)
}

/// Port and frame of a punted frame that was too long for a header.
pub fn punted_by_tags(packet: &PacketBuf) -> (PortNo, PacketBuf) {
    let mut packet = packet.clone();
    let [high, low] = [(); 2].map(|()| flow::pop_vlan(&mut packet).expect("it has a tag"));
    assert_eq!([high.tpid, low.tpid], [EtherType::QINQ, EtherType::VLAN]);
    (PortNo(u32::from(high.tci()) << 16 | u32::from(low.tci())), packet)
}
