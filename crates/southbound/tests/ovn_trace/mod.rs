//! Compares [`translate`] with ovn-trace on real OVN networks, built with ovn-nbctl and compiled by
//! ovn-northd. Each difference must have a reason in [`Known`], and is counted.

mod networks;
mod oracle;
mod packets;

use flow::{Action, DropReason, Field, FlowKey, Reply, ct_state};
use networks::Network;
use oracle::{Answer, Headers, Own};
use packets::{Inport, Packet, Random};
use pipeline::{
    AfterTracking, AssumedCtStates, Assumptions, Event, Nested, Observer, Program, TrackRequest,
    translate,
};
use southbound::{Southbound, SouthboundNetwork};
use std::collections::{BTreeMap, HashMap};
use testkit::ovn::Ovn;

/// The most passes of a packet through the connection tracker, all copies together.
const MAX_TRACKED: usize = 64;

/// The number of packets for each network.
const PACKETS: usize = 2500;

/// The known reasons why weft differs from ovn-trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Known {
    /// A difference in the headers of a reply, which the comparison has corrected.
    Own(Own),
    /// ovn-trace aborts ("assertion ovnact->type == OVNACT_ND_NA failed") at `nd_na_router`.
    AbortsAtRouterAdvertisement,
    /// ovn-trace recurses until its stack overflows, because it sends endless replies to replies:
    /// it replies to resets and errors, and treats a solicitation like the packet that caused it.
    /// weft does not, or drops the packet at its limit.
    RecursesWithoutEnd,
    /// ovn-trace matches ACLs on a solicitation against the headers of the packet that caused it
    /// ([`Own::SolicitationKeepsHeaders`]).
    SolicitationIsJudgedAsThatPacket,
    /// ovn-trace matches ACLs on a reset against the ports of the packet that caused it
    /// ([`Own::ResetKeepsPorts`]).
    ResetIsJudgedByOldPorts,
    /// A routing loop exceeds weft's limit of steps; ovn-trace follows it until the hop limit
    /// expires.
    LoopIsCut,
    /// In OVN 23.03.1, `igmp`, `mldv1` and `mldv2` match packets to any address; in later versions
    /// and in weft only to multicast addresses.
    SnoopsUnicast,
    /// ovn-trace's port security differs from the rules of ovn-controller and weft. It lets an
    /// address set with IP addresses send other Ethernet types. It checks link-layer addresses in
    /// solicitations, but not in advertisements of a port without IP addresses. It forbids `::` as
    /// a source.
    PortSecurityIsSimpler,
    /// ovn-trace keeps the connection state of a packet that passes a patch port. ovn-controller
    /// and weft make the packet untracked there, because its zone belongs to the other datapath.
    PatchPortKeepsConnection,
    /// weft does not support a controller action.
    Unsupported,
}

/// Records how weft treats a packet.
struct Watch<'n> {
    program: &'n Program,
    /// The choices that ovn-trace made, in reverse order.
    selected: Vec<u16>,
    outputs: Vec<(String, Headers)>,
    drops: Vec<DropReason>,
    replies: Vec<Reply>,
    /// A stack of nested steps; true for the branch of frames that are too long, which ovn-trace
    /// does not follow.
    too_long: Vec<bool>,
    ct_states: AssumedCtStates,
}

impl Observer for Watch<'_> {
    fn track(&mut self, request: &TrackRequest<'_>) -> AfterTracking {
        AfterTracking::Assume(self.ct_states.track(request))
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Enter(nested) => {
                self.too_long.push(matches!(nested, Nested::Longer(_)));
                if let Nested::Reply(reply) = nested {
                    self.replies.push(reply);
                }
            }
            Event::Leave => drop(self.too_long.pop()),
            _ if self.too_long.contains(&true) => {}
            Event::Output { logical: Some((datapath, port)), key, .. } => {
                let port = self.program.datapath(datapath).and_then(|d| d.ports.get(&port));
                let name = port.map(|port| port.name.clone()).unwrap_or_default();
                self.outputs.push((name, Headers::of(key).cleared()));
            }
            Event::Drop(reason) => self.drops.push(reason),
            _ => {}
        }
    }

    fn select(&mut self, choices: &[(u16, u16)]) -> Option<usize> {
        let wanted = self.selected.pop()?;
        choices.iter().position(|&(value, _)| value == wanted)
    }
}

/// A network under test.
struct Trial {
    ovn: Ovn,
    network: SouthboundNetwork,
    program: Program,
    inports: Vec<Inport>,
    /// The state of all connections.
    ct_state: u8,
}

impl Trial {
    fn start(drawn: &Network) -> Self {
        let ovn = Ovn::start(drawn.name);
        ovn.configure(&drawn.commands);
        let rows = Southbound::parse(&ovn.dump()).expect("a dump can be read");
        for command in &drawn.learned {
            ovn.sbctl(&with_names(command, &rows));
        }
        let rows = Southbound::parse(&ovn.dump()).expect("a dump can be read");
        let network = rows.network().unwrap_or_else(|errors| panic!("{errors:#?}"));
        let datapaths: HashMap<_, _> = rows.datapaths.iter().map(|d| (d.uuid, d.name())).collect();
        let inports = rows.ports.iter().filter_map(|row| {
            Some(Inport {
                name: row.logical_port.clone(),
                datapath: datapaths.get(&row.datapath)?.clone(),
                number: *network.ports.get(&row.logical_port)?,
                addresses: row.mac.clone(),
                is_secured: !row.port_security.is_empty(),
            })
        });
        let mut inports: Vec<Inport> = inports.collect();
        inports.sort_by(|a, b| a.name.cmp(&b.name));
        let program = network.loader.program();
        Self { ovn, network, program, inports, ct_state: ct_state::ESTABLISHED }
    }

    /// Translates a packet with the choices of ovn-trace. Returns also the drop reason if nothing
    /// is sent.
    fn watch(&self, packet: &Packet, selected: &[u16]) -> Watch<'_> {
        let mut watch = Watch {
            program: &self.program,
            selected: selected.iter().rev().copied().collect(),
            outputs: Vec::new(),
            drops: Vec::new(),
            replies: Vec::new(),
            too_long: Vec::new(),
            ct_states: AssumedCtStates::new(vec![self.ct_state; MAX_TRACKED]),
        };
        let translation = translate(&self.program, &packet.key, &self.network.learned, &mut watch);
        let last = translation.dropped();
        watch.drops.extend(last);
        watch.outputs.sort();
        watch
    }

    /// Checks that a packet that differs only in bits outside the mask has the same result.
    fn check_mask(&self, packet: &Packet, other: &FlowKey) {
        let state = &self.network.learned;
        let decided = translate(&self.program, &packet.key, state, &mut ());
        let mut changed = other.clone();
        for &field in Field::ALL {
            let bits = decided.mask.get(field);
            changed.set(field, packet.key.get(field) & bits | other.get(field) & !bits);
        }
        let again = translate(&self.program, &changed, state, &mut ());
        assert_eq!(again.actions, decided.actions, "{}\n{changed:?}", packet.text);
    }

    /// Describes a packet whose results differ.
    fn explain(&self, packet: &Packet, theirs: &str, answer: &Answer, ours: &Watch<'_>) -> String {
        let ct_states = vec![self.ct_state; MAX_TRACKED];
        let assumed = Assumptions { choice: None, ct_states };
        let trace = pipeline::trace(&self.program, &packet.key, &self.network.learned, &assumed).0;
        format!(
            "--- {}\novn-trace: {:#?}\nweft: {:#?} {:?}\n{theirs}\n{trace}",
            packet.text, answer.outputs, ours.outputs, ours.drops
        )
    }
}

/// Replaces `{NAME}` by the UUID of a datapath and `{#NAME}` by the key of a datapath or port.
fn with_names(command: &str, rows: &Southbound) -> String {
    let mut command = command.to_owned();
    for row in &rows.datapaths {
        command = command.replace(&format!("{{{}}}", row.name()), &row.uuid.to_string());
        command = command.replace(&format!("{{#{}}}", row.name()), &row.tunnel_key.to_string());
    }
    for row in &rows.ports {
        let name = format!("{{#{}}}", row.logical_port);
        command = command.replace(&name, &row.tunnel_key.to_string());
    }
    command
}

/// The known reason why ovn-trace crashed.
fn why_crashed(ours: &Watch<'_>) -> Option<Known> {
    const ENDLESS: [DropReason; 2] = [DropReason::TranslationSteps, DropReason::TranslationDepth];
    let is_endless = ENDLESS.iter().any(|reason| ours.drops.contains(reason));
    let is_unsupported = ours.drops.contains(&DropReason::UnsupportedAction);
    if ours.replies.contains(&Reply::NeighbourAdvert { router: true }) {
        Some(Known::AbortsAtRouterAdvertisement)
    } else if is_endless || is_unsupported || !ours.replies.is_empty() {
        Some(Known::RecursesWithoutEnd)
    } else {
        None
    }
}

/// The known reason why the results differ.
fn why_different(
    packet: &Packet,
    is_secured: bool,
    trace_output: &str,
    answer: &Answer,
    ours: &Watch<'_>,
) -> Option<Known> {
    let get = |field| packet.key.get(field);
    let all_but = |is_excepted: fn(&Headers) -> bool| {
        let others = |outputs: &[(String, Headers)]| {
            let others = outputs.iter().filter(|(_, headers)| !is_excepted(headers));
            others.cloned().collect::<Vec<_>>()
        };
        others(&answer.outputs) == others(&ours.outputs)
    };
    if ours.drops.contains(&DropReason::UnsupportedAction) {
        const ACTIONS: [&str; 2] = ["ct_", "igmp"];
        return ACTIONS
            .iter()
            .any(|action| trace_output.contains(action))
            .then_some(Known::Unsupported);
    }
    if ours.drops.contains(&DropReason::TranslationSteps)
        && trace_output.matches("ip.ttl--;").count() > 20
    {
        return Some(Known::LoopIsCut);
    }
    if answer.own.contains(&Own::SolicitationKeepsHeaders) && all_but(Headers::is_solicitation) {
        return Some(Known::SolicitationIsJudgedAsThatPacket);
    }
    if answer.own.contains(&Own::ResetKeepsPorts) && all_but(Headers::is_reset) {
        return Some(Known::ResetIsJudgedByOldPorts);
    }
    let is_snooped = match get(Field::EthType) {
        0x800 => get(Field::IpProto) == 2 && get(Field::Ip4Dst) >> 28 != 0xe,
        _ => matches!(get(Field::IcmpType), 130..=132 | 143) && get(Field::Ip6Dst) >> 120 != 0xff,
    };
    if is_snooped && trace_output.contains(" igmp;") {
        return Some(Known::SnoopsUnicast);
    }
    let is_other = !matches!(get(Field::EthType), 0x800 | 0x806 | 0x86dd);
    let is_from_nobody = get(Field::EthType) == 0x86dd && get(Field::Ip6Src) == 0;
    let has_others_link = [Field::NdSll, Field::NdTll]
        .iter()
        .any(|&link| ![0, get(Field::EthSrc)].contains(&get(link)));
    if is_secured && (is_other || is_from_nobody || has_others_link) {
        return Some(Known::PortSecurityIsSimpler);
    }
    if trace_output.contains("ct_next(ct_state=") && trace_output.contains("type \"patch\"") {
        return Some(Known::PatchPortKeepsConnection);
    }
    None
}

fn compare(drawn: &Network) -> BTreeMap<Known, usize> {
    compare_assuming(drawn, "est")
}

/// Compares under the assumption that all connections are in this state, as with `ovn-trace --ct`.
fn compare_assuming(drawn: &Network, ct_state: &str) -> BTreeMap<Known, usize> {
    let mut trial = Trial::start(drawn);
    trial.ct_state = ct_state.split(',').filter_map(ct_state::from_name).fold(0, |a, b| a | b);
    // ovn-trace uses each `--ct` option for one pass through the connection tracker.
    let option = format!("--ct={ct_state}");
    let options = vec![option.as_str(); if ct_state == "est" { 0 } else { 4 * PACKETS }];
    let mut tracers = 0;
    let mut tracer = trial.ovn.tracer_with(tracers, &options);
    let mut random = Random::new(1);
    let mut known: BTreeMap<Known, usize> = BTreeMap::new();
    let (mut delivered, mut unknown) = (0, Vec::new());
    let mut before = FlowKey::default();
    for _ in 0..PACKETS {
        let inport = random.pick(&trial.inports);
        let packet = Packet::random(&mut random, drawn, inport);
        let Some(trace_output) = tracer.trace(&inport.datapath, &packet.text) else {
            match why_crashed(&trial.watch(&packet, &[])) {
                Some(reason) => *known.entry(reason).or_default() += 1,
                None => unknown.push(trial.explain(
                    &packet,
                    "ovn-trace has crashed",
                    &Answer::default(),
                    &trial.watch(&packet, &[]),
                )),
            }
            tracers += 1;
            tracer = trial.ovn.tracer_with(tracers, &options);
            continue;
        };
        let mut answer = oracle::read(&trace_output, &Headers::of(&packet.key));
        answer.outputs.sort();
        let ours = trial.watch(&packet, &answer.selected);
        for own in &answer.own {
            *known.entry(Known::Own(*own)).or_default() += 1;
        }
        trial.check_mask(&packet, &before);
        before = packet.key.clone();
        delivered += usize::from(!answer.outputs.is_empty());
        if answer.outputs != ours.outputs {
            match why_different(&packet, inport.is_secured, &trace_output, &answer, &ours) {
                Some(reason) => *known.entry(reason).or_default() += 1,
                None => unknown.push(trial.explain(&packet, &trace_output, &answer, &ours)),
            }
        }
    }
    let shown = unknown.len().min(5);
    println!(
        "{}: {PACKETS} packets, {delivered} delivered, known differences: {known:?}",
        drawn.name
    );
    assert!(unknown.is_empty(), "{} differ:\n{}", unknown.len(), unknown[..shown].join("\n"));
    // The comparison would be weak if most packets were dropped or differed.
    assert!(delivered > PACKETS / 4, "{delivered}");
    let differing = known.iter().filter(|(reason, _)| !matches!(reason, Known::Own(_)));
    assert!(differing.map(|(_, count)| count).sum::<usize>() < PACKETS / 20, "{known:?}");
    testkit::report::peer(
        "OVN 23.03 ovn-trace",
        &format!("{PACKETS} random packets in the network `{}`, {delivered} delivered", drawn.name),
    );
    known
}

#[test]
fn acls_do_what_ovn_trace_says() {
    testkit::require_program!("ovn-northd", "ovn-central");
    compare(&networks::acls());
}

#[test]
fn routers_do_what_ovn_trace_says() {
    testkit::require_program!("ovn-northd", "ovn-central");
    compare(&networks::routers());
}

#[test]
fn layer_2_does_what_ovn_trace_says() {
    testkit::require_program!("ovn-northd", "ovn-central");
    compare(&networks::layer2());
}

#[test]
fn stateful_acls_do_what_ovn_trace_says_about_established_connections() {
    testkit::require_program!("ovn-northd", "ovn-central");
    compare_assuming(&networks::stateful_acls("stateful-est"), "est");
}

#[test]
fn stateful_acls_do_what_ovn_trace_says_about_new_connections() {
    testkit::require_program!("ovn-northd", "ovn-central");
    compare_assuming(&networks::stateful_acls("stateful-new"), "new");
}

#[test]
fn stateful_acls_do_what_ovn_trace_says_about_replies() {
    testkit::require_program!("ovn-northd", "ovn-central");
    compare_assuming(&networks::stateful_acls("stateful-reply"), "est,rpl");
}

#[test]
fn large_network_is_loaded_whole() {
    testkit::require_program!("ovn-northd", "ovn-central");
    let drawn = networks::large();
    let ovn = Ovn::start(drawn.name);
    ovn.configure(&drawn.commands);
    let rows = Southbound::parse(&ovn.dump()).expect("a dump can be read");
    let network = rows.network().unwrap_or_else(|errors| panic!("{errors:#?}"));
    assert!(rows.flows.len() > 8000, "{}", rows.flows.len());
    assert_eq!(network.loader.flow_count(), rows.flows.len());
    let mut key = FlowKey::default();
    for (field, value) in [
        (Field::InPort, network.ports["vm-7-1"].0.into()),
        (Field::EthSrc, 0x0200_0007_0001),
        (Field::EthDst, 0x0001_0007_0001),
        (Field::EthType, 0x800),
        (Field::Ip4Src, 0x0a00_0701),
        (Field::Ip4Dst, 0x0a00_0c0c),
        (Field::IpProto, 47),
        (Field::IpTtl, 64),
    ] {
        key.set(field, value);
    }
    let program = network.loader.program();
    let actions = translate(&program, &key, &network.learned, &mut ()).actions;
    assert_eq!(actions.last(), Some(&Action::Output(network.ports["vm-12-12"])), "{actions:?}");
}
