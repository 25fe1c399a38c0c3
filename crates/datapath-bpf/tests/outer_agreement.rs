//! Compares decapsulation by the program of the uplink and by userspace. Both must deliver the same
//! frame, from the same sender, with the same key. The program must deliver nothing that userspace
//! refuses, and may leave only few packets to userspace, all of them unusual.
//!
//! `cargo xtask bpf-agreement` is the long run. `WEFT_CASES` and `WEFT_SEED` set the number of
//! packets and the random seed.

use crate::common::abi::{WEFT_LOCAL_COMPLETE, WEFT_LOCAL_OPEN};
use crate::common::cut::Cutter;
use crate::common::decap::{
    Delivery, Receiver, Refusal, SHORT_FRAME, has_right_checksum, reason_to_punt,
};
use crate::common::encode::{self, Bytes};
use crate::common::frames::{tcp4, tcp6, udp4};
use crate::common::outer::{self, L3};
use crate::common::switch::{DROPPED, PASSED, REDIRECTED, RunResult, Switch};
use crate::common::tunnels::{self, Tunnel};
use datapath_bpf::{ActionListNo, FlowNo, KernelKey, KernelMatch};
use flow::{Action, Carrier, DropReason, FlowKey, FlowMask};
use libbpf_rs::OpenObject;
use std::collections::BTreeMap;
use std::fmt;
use std::mem::MaybeUninit;
use testkit::random::{Random, environment};

/// The kernel refuses test runs of shorter packets, so these go through a [`Cutter`].
const SHORT: usize = 64;

/// The program of the uplink, with tunnels of every type, and one megaflow that delivers all
/// packets.
struct Uplink {
    switch: Switch,
    tunnels: Vec<Tunnel>,
    megaflow: FlowNo,
}

/// The program's result for a packet.
#[derive(Debug)]
struct ProgramResult {
    ran: RunResult,
    /// The key, if the program extracted one and found the megaflow.
    key: Option<KernelKey>,
}

/// The outcome on which both agree, or what they disagree on.
type Judgement = Result<&'static str, &'static str>;

impl Uplink {
    fn load() -> Self {
        let mut switch = Switch::load_in_one_chain();
        let tunnels = tunnels::add_every(&mut switch);
        let key = FlowKey::default();
        let list = encode::list(&[Action::Output(Switch::DEVICE)], &key, 0);
        switch.update("weft_actions", 1, &list);
        let any = KernelMatch::new(&key, &FlowMask::default()).expect("the key holds it");
        let megaflow = switch.tables.put(&any, ActionListNo(1)).expect("there is room");
        for tunnel in &tunnels {
            let state = if has_all(tunnel) { WEFT_LOCAL_COMPLETE } else { WEFT_LOCAL_OPEN };
            let local = encode::local(&tunnel.spec, tunnel.local);
            switch.update_key("weft_locals", &local, &Bytes::new().u32(state));
        }
        Self { switch, tunnels, megaflow }
    }

    fn cutter<'obj>(&self, object: &'obj mut MaybeUninit<OpenObject>) -> Cutter<'obj> {
        let [_, uplink] = self.switch.programs();
        Cutter::load(object, uplink)
    }

    fn receiver(&self) -> Receiver<'_> {
        Receiver { tunnels: &self.tunnels, endpoints: &self.switch.endpoints }
    }

    fn run(&self, cutter: &mut Cutter<'_>, packet: &[u8]) -> ProgramResult {
        let ran = match packet.len() {
            ..SHORT => cutter.run(packet),
            SHORT.. => self.switch.uplink(packet),
        };
        ProgramResult { ran, key: self.switch.take_cached_key() }
    }

    /// Compares the program's result with userspace's for a packet that userspace delivers.
    fn judge_delivery(
        &self,
        packet: &[u8],
        delivery: &Delivery<'_>,
        program: &ProgramResult,
    ) -> Judgement {
        let why = reason_to_punt(packet, delivery);
        if program.key.is_some_and(|key| key != KernelKey::from(&delivery.key)) {
            return Err("the keys differ");
        }
        match (is_left(&program.ran, packet), program.key) {
            (Some(left), _) if left != left_as(delivery.tunnel.spec.tunnel.carrier()) => {
                Err("it is left to the wrong part of userspace")
            }
            (Some(_), Some(_)) => {
                // The program extracts the key, but cannot decapsulate a frame that is so short.
                self.switch.unpin(self.megaflow);
                why.filter(|why| *why == SHORT_FRAME).ok_or("it is not executed")
            }
            (Some(_), None) => why.ok_or("it is left to userspace without a reason"),
            (None, None) => Err("it is neither delivered nor left"),
            (None, Some(_)) if program.ran.verdict != REDIRECTED => Err("it is dropped"),
            (None, Some(_)) if program.ran.bytes != delivery.frame => Err("the frames differ"),
            (None, Some(_)) => match has_right_checksum(packet, delivery) {
                true => Ok(DELIVERED),
                false => Ok("delivered with a wrong outer UDP checksum"),
            },
        }
    }

    /// Compares the program's result with userspace's for a packet that userspace does not deliver.
    fn judge_refusal(&self, packet: &[u8], refusal: Refusal, program: &ProgramResult) -> Judgement {
        if program.key.is_some() {
            return Err("only the program makes a key of it");
        }
        let is_unknown = matches!(refusal, Refusal::Inside(_, DropReason::UnknownEndpoint, _));
        match (refusal, is_left(&program.ran, packet)) {
            (Refusal::NotOurs, Some(Left::Passed)) => Ok("for no tunnel"),
            (Refusal::NotOurs, _) => Err("it belongs to the host"),
            (_, None) if program.ran.verdict != DROPPED => Err("it is delivered"),
            (_, None) if self.receiver().knows_sender(packet) => Err("an end point sent it"),
            (_, None) if is_unknown => Ok("from an unknown sender, dropped by both"),
            (_, None) => Ok("damaged and from an unknown sender, dropped by both"),
            (Refusal::Outer(DropReason::OuterFragment), Some(_)) => Ok("outer fragments"),
            (Refusal::Outer(_), Some(_)) => Ok("outer headers refused by both"),
            (Refusal::Inside(carrier, ..), Some(left)) if left != left_as(carrier) => {
                Err("it is left to the wrong part of userspace")
            }
            (Refusal::Inside(_, _, tunnel), Some(_)) if is_unknown && has_all(&tunnel) => {
                Err("all senders are known")
            }
            (Refusal::Inside(..), Some(_)) => Ok("tunnel header or frame refused by both"),
        }
    }
}

const DELIVERED: &str = "delivered";

/// Whether the programs' maps say that they contain all senders of the tunnel, so that the programs
/// drop packets from others.
fn has_all(tunnel: &Tunnel) -> bool {
    tunnel.id.0.is_multiple_of(2)
}

/// How a program leaves a packet to userspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// To a socket, or to the host.
    Passed,
    Punted,
}

fn is_left(ran: &RunResult, packet: &[u8]) -> Option<Left> {
    if ran.verdict == PASSED && ran.bytes == packet {
        return Some(Left::Passed);
    }
    (ran.punted() == Some((Switch::UPLINK, packet))).then_some(Left::Punted)
}

fn left_as(carrier: Carrier) -> Left {
    if carrier == Carrier::Udp { Left::Passed } else { Left::Punted }
}

/// Numbers of packets by outcome. It is shown as rows of a table.
#[derive(Default)]
struct Tally(BTreeMap<(bool, &'static str), u64>);

impl Tally {
    fn share(&self, is_chosen: impl Fn(&(bool, &'static str)) -> bool) -> f64 {
        let chosen = self.0.iter().filter(|(key, _)| is_chosen(key)).map(|(_, count)| count);
        chosen.sum::<u64>() as f64 / self.0.values().sum::<u64>() as f64
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((is_for_guest, outcome), count) in &self.0 {
            let what = if *is_for_guest { "delivers" } else { "refuses" };
            writeln!(f, "| tunnel packets that userspace {what} | {outcome} | {count} |")?;
        }
        Ok(())
    }
}

#[test]
fn kernel_and_userspace_agree_on_outer_packets() {
    testkit::require_root!();
    let seed = environment("WEFT_SEED", 1);
    let uplink = Uplink::load();
    let mut object = MaybeUninit::uninit();
    let mut cutter = uplink.cutter(&mut object);
    let mut received = vec![0; uplink.tunnels.len()];
    let mut tally = Tally::default();
    let mut random = Random::new(seed);
    for number in 0..environment("WEFT_CASES", 200_000) {
        let packet = outer::packet(&mut random, &uplink.tunnels);
        let program = uplink.run(&mut cutter, &packet);
        let decision = uplink.receiver().decide(&packet);
        let judgement = match &decision {
            Ok(delivery) => uplink.judge_delivery(&packet, delivery, &program),
            Err(refusal) => uplink.judge_refusal(&packet, *refusal, &program),
        };
        let outcome = judgement.unwrap_or_else(|what| {
            panic!("seed {seed}, packet {number}: {what}\n{packet:02x?}\n{decision:?}\n{program:?}")
        });
        if let (Ok(delivery), REDIRECTED) = (&decision, program.ran.verdict)
            && outcome.starts_with(DELIVERED)
        {
            let id = delivery.tunnel.id;
            received[id.0 as usize] += 1;
            let counted = uplink.switch.endpoint_counts(id)[2];
            assert_eq!(counted, received[id.0 as usize], "seed {seed}, packet {number}: {id:?}");
        }
        *tally.0.entry((decision.is_ok(), outcome)).or_default() += 1;
        if (number + 1).is_multiple_of(1_000_000) {
            println!("after {} packets", number + 1);
        }
    }
    println!("\n{tally}");
    assert!(tally.share(|(_, outcome)| *outcome == DELIVERED) > 0.3, "{tally}");
    assert!(tally.share(|(is_for_guest, _)| !is_for_guest) > 0.3, "{tally}");
    let is_left =
        |(is_for_guest, outcome): &(bool, &str)| *is_for_guest && !outcome.starts_with(DELIVERED);
    assert!(tally.share(is_left) < 0.2, "too much is left to userspace:\n{tally}");
    assert!(received.iter().all(|&received| received > 0), "{received:?}");
}

/// Adapts the lengths in the outer headers to the length of a packet that was cut.
fn with_lengths(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let len = packet.len() - L3;
    let (ip_len, protocol) = if packet[12] == 8 {
        (20, packet.get(L3 + 9).copied())
    } else {
        (40, packet.get(L3 + 6).copied())
    };
    let Some(payload) = len.checked_sub(ip_len) else { return packet };
    if ip_len == 20 {
        packet[L3 + 2..L3 + 4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[L3 + 10..L3 + 12].fill(0);
        let sum = wire::checksum::checksum(&packet[L3..L3 + 20]);
        packet[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[L3 + 4..L3 + 6].copy_from_slice(&(payload as u16).to_be_bytes());
    }
    if protocol == Some(17) && payload >= 8 {
        let length = L3 + ip_len + 4..L3 + ip_len + 6;
        packet[length].copy_from_slice(&(payload as u16).to_be_bytes());
    }
    packet
}

/// The packets are also tested with outer lengths that agree with the cut.
#[test]
fn truncated_tunnel_packets_are_refused_at_every_byte() {
    testkit::require_root!();
    let uplink = Uplink::load();
    let mut object = MaybeUninit::uninit();
    let mut cutter = uplink.cutter(&mut object);
    let random = &mut Random::new(1);
    for tunnel in &uplink.tunnels {
        for inner in [tcp4(), tcp6(), udp4(&[7; 50])] {
            let whole = tunnels::outer(tunnel, &inner, &tunnel.key(random));
            let program = uplink.run(&mut cutter, &whole);
            let delivered = RunResult { verdict: REDIRECTED, bytes: inner };
            assert_eq!(program.ran, delivered, "{tunnel:?}");
            for len in 14..whole.len() {
                for cut in [whole[..len].to_vec(), with_lengths(&whole[..len])] {
                    let refusal = uplink.receiver().decide(&cut).map(|delivery| delivery.key);
                    let refusal = refusal.expect_err("userspace refuses it");
                    let program = uplink.run(&mut cutter, &cut);
                    let left = is_left(&program.ran, &cut);
                    assert!(
                        left.is_some() && program.key.is_none(),
                        "{len} of {} bytes: {program:?} of {tunnel:?}, {refusal:?}",
                        whole.len()
                    );
                }
            }
        }
    }
}
