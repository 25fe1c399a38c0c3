//! Tests guests that send messages which only routers and DHCP servers may send (RA guard and DHCP
//! guard). They hide the messages behind fragments, extension headers, VLAN tags and SNAP headers.
//! `peers/guarded.py` generates the frames.

use crate::common::daemon::port;
use crate::common::frames::{FrameSocket, note};
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Lab, PATIENCE, Setup};
use crate::peers::scapy::{bytes_of, run_script};
use datapath::stats::Drops;
use serde::Deserialize;
use testkit::host::wait_until;
use testkit::{require_program, require_root};

/// A message that a guard checks, or a harmless message.
#[derive(Deserialize)]
struct Message {
    /// The MAC addresses of its sender and receiver.
    src: String,
    dst: String,
    name: String,
    /// The trust that a port needs for this message; `None` if it needs no trust.
    trust: Option<String>,
    /// The frames in hexadecimal, each with the reason for which it is dropped without trust.
    frames: Vec<(String, Option<String>)>,
}

/// The drop reason of frames that are dropped whatever trust the port has.
const ALWAYS: &str = "malformed";

/// All messages of each sender to each of its receivers. Python is started only once, because
/// importing scapy takes longer than generating the frames.
fn messages(macs: &[[String; 2]]) -> Vec<Message> {
    let macs: Vec<_> = macs.as_flattened().iter().map(String::as_str).collect();
    let output = run_script("guarded.py", &macs, "");
    output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The guests of `h1`: one without trust, three with trust, and a receiver. Another receiver is on
/// `h2`.
struct Guests {
    lab: Lab,
    daemons: [Daemon; 2],
    sockets: Vec<FrameSocket>,
    fences: u32,
}

/// The indices of the senders, and the trust that each has.
const SENDERS: [(usize, &[&str]); 4] =
    [(0, &[]), (1, &["ra"]), (2, &["dhcp"]), (3, &["ra", "dhcp"])];
const RECEIVERS: [usize; 2] = [4, 5];

impl Guests {
    fn new(datapath: Datapath) -> Self {
        let mut setup = Setup::new("geneve").guests(5, 1).datapath(datapath);
        for (guest, trusts) in SENDERS.into_iter().filter(|(_, trusts)| !trusts.is_empty()) {
            let list: Vec<_> = trusts.iter().map(|trust| format!("{trust:?}")).collect();
            setup = setup.trusted(guest + 1, &list.join(", "));
        }
        let lab = Lab::new(setup);
        let daemons = lab.start_both();
        let open = |guest: &crate::common::Guest| FrameSocket::open(&guest.netns, GUEST_DEVICE);
        let sockets = lab.guests.iter().map(open).collect();
        Self { lab, daemons, sockets, fences: 0 }
    }

    fn dropped(&self, sender: usize) -> Drops {
        port(&self.daemons[0], &self.lab.guests[sender].name).drops
    }

    /// Sends a frame from `sender` to `receiver`. Returns all frames that the receiver gets up to
    /// this frame.
    fn seen(&mut self, sender: usize, receiver: usize) -> Vec<Vec<u8>> {
        self.fences += 1;
        let fence = format!("fence {};", self.fences);
        let (from, to) = (self.lab.guests[sender].mac, self.lab.guests[receiver].mac);
        self.sockets[sender].send(&note(to, from, &fence));
        self.sockets[receiver].until_note(&fence)
    }

    /// Sends a message. Checks which of its frames arrive, and for which reasons the others are
    /// dropped.
    fn check(&mut self, what: &str, (sender, trusts): (usize, &[&str]), to: usize, of: &Message) {
        let is_trusted = of.trust.as_deref().is_some_and(|trust| trusts.contains(&trust));
        let mut expected = self.dropped(sender);
        let (mut passing, mut forbidden) = (Vec::new(), Vec::new());
        for (frame, reason) in &of.frames {
            let frame = bytes_of(frame);
            match reason {
                Some(reason) if !is_trusted || reason == ALWAYS => {
                    *expected.entry(reason.clone()).or_default() += 1;
                    forbidden.push(frame.clone());
                }
                _ => passing.push(frame.clone()),
            }
            self.sockets[sender].send(&frame);
        }
        let mut seen = Vec::new();
        // A punted frame may be overtaken by later ones.
        wait_until(PATIENCE, &format!("{what}: the permitted frames arrive"), || {
            seen.extend(self.seen(sender, to));
            passing.iter().all(|frame| seen.contains(frame))
        });
        wait_until(PATIENCE, &format!("{what}: the rest is counted"), || {
            self.dropped(sender).values().sum::<u64>() >= expected.values().sum()
        });
        seen.extend(self.seen(sender, to));
        assert_eq!(self.dropped(sender), expected, "{what}");
        assert!(!forbidden.iter().any(|frame| seen.contains(frame)), "{what} was delivered");
    }

    /// Whether a guest has a default route for IPv6.
    fn has_default_route(&self, guest: usize) -> bool {
        let read = || std::fs::read_to_string("/proc/thread-self/net/ipv6_route");
        let routes = self.lab.guests[guest].netns.run(read).expect("the routes can be read");
        // Every namespace also has an unreachable default route on the loopback device, which does
        // not count.
        let default = format!("{} 00 ", "0".repeat(32));
        routes.lines().any(|line| line.starts_with(&default) && line.ends_with(GUEST_DEVICE))
    }

    fn macs(&self, of: [usize; 2]) -> [String; 2] {
        of.map(|guest| self.lab.guests[guest].mac.to_string())
    }
}

#[test]
fn router_and_dhcp_messages_pass_only_from_trusted_ports() {
    require_root!();
    require_program!("scapy", "python3-scapy");
    // Whether a port is trusted does not depend on the receiver, so one receiver suffices for
    // trusted senders.
    let receivers = |trusts: &[&str]| &RECEIVERS[..if trusts.is_empty() { 2 } else { 1 }];
    let pairs = SENDERS.into_iter().flat_map(|(sender, trusts)| {
        receivers(trusts).iter().map(move |&receiver| [sender, receiver])
    });
    let labs = Datapath::BOTH.map(|datapath| (datapath, Guests::new(datapath)));
    // The guests of both labs have the same MAC addresses, so both use the same messages.
    let made = messages(&pairs.map(|pair| labs[0].1.macs(pair)).collect::<Vec<_>>());
    for (datapath, mut guests) in labs {
        for (sender, trusts) in SENDERS {
            let rounds = if trusts.is_empty() { 2 } else { 1 };
            for &receiver in receivers(trusts) {
                let [src, dst] = guests.macs([sender, receiver]);
                let is_theirs = |of: &&Message| (&of.src, &of.dst) == (&src, &dst);
                let messages: Vec<_> = made.iter().filter(is_theirs).collect();
                assert!(messages.len() > 60, "only {} messages", messages.len());
                // Frames of the second round can match megaflows of the first.
                for round in 1..=rounds {
                    for message in &messages {
                        let name = &message.name;
                        let what =
                            format!("{datapath:?}, round {round}: {name} with trust {trusts:?}");
                        guests.check(&what, (sender, trusts), receiver, message);
                    }
                }
            }
            // Delivered advertisements are valid, so the guest's Linux kernel adds a default route.
            let is_router = trusts.contains(&"ra");
            for guest in RECEIVERS.into_iter().filter(|_| sender < 2) {
                let what = format!("{datapath:?}, {trusts:?}: default route of guest {guest}");
                // The guest on the other host may still be receiving the frames.
                wait_until(PATIENCE, &what, || guests.has_default_route(guest) == is_router);
            }
        }
        guests.daemons.into_iter().for_each(Daemon::stop);
    }
}
