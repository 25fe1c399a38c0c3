//! Measures the cost of the programs in instructions, in a virtual machine with Debian's kernel.
//! This also tests that the programs load on that kernel.

use crate::common::debian;
use crate::common::frames::{tcp4, tcp6};
use crate::common::lookup::{EXECUTED, Lookup};
use crate::common::switch::Switch;
use crate::common::tunnels;
use datapath_bpf::{FlowTableSizes, KernelMatch, MapError};
use flow::{
    Action, DatapathKey, Field, FlowKey, FlowMask, LogicalPorts, PortKey, PortNo, TunnelInfo,
    TunnelKey, TunnelType,
};
use packet::PacketBuf;

/// The limits for parsing, extracting the key, and a hit in the exact-match cache.
const HIT4_INSTRUCTIONS: u32 = 320;
const HIT6_INSTRUCTIONS: u32 = 495;
/// Runs of a program. They take at least five million instructions, so that a timer interrupt,
/// which costs some thousand and occurs every four million, changes the mean by less than a
/// percent.
const REPEAT: u32 = 20_000;

/// Adds megaflows with other masks, and finally one that matches the frame.
fn install(kernel: &mut Lookup, frame: &[u8], masks: usize) {
    let key = flow::extract(&PacketBuf::from_bytes(frame), Lookup::PORT, None).expect("is whole");
    for number in 0..masks {
        let mut mask = FlowMask::default();
        let usual = [Field::InPort, Field::EthSrc, Field::EthDst, Field::EthType, Field::Ip4Dst];
        usual.iter().for_each(|&field| mask.add(field));
        mask.add_bits(Field::TpDst, number as u128);
        let mut other = key.clone();
        if number + 1 < masks {
            other.set(Field::EthSrc, 1);
        }
        let megaflow = KernelMatch::new(&other, &mask).expect("bits that the key holds");
        kernel.tables.put(&megaflow, EXECUTED).expect("there is room");
    }
}

/// Not a test: `instructions_of_a_hit_stay_within_their_limit` runs it in the virtual machine.
#[test]
#[ignore = "prints times, for the machine that counts instructions"]
fn print_times() {
    for (name, frame) in [("tcp4", tcp4()), ("tcp6", tcp6())] {
        // Long searches take most of the time, and have no limit.
        for masks in [1, 8] {
            let mut kernel = Lookup::load(FlowTableSizes { flows: 1000, cached: 1024 });
            install(&mut kernel, &frame, masks);
            let found = kernel.find(&frame);
            assert!(found.is_some() && kernel.search(&frame) == found);
            for (program, time) in kernel.times(&frame, REPEAT) {
                println!("TIME {name} {masks} {program} {}", time.as_nanos());
            }
        }
    }
}

/// Not a test: `instructions_of_the_programs_stay_within_their_limits` runs it.
#[test]
#[ignore = "prints times, for the machine that counts instructions"]
fn print_program_times() {
    let lookup = Lookup::load(FlowTableSizes { flows: 10, cached: 16 });
    let zeros = [&tcp4()[..14], &[0; 36], &tcp4()].concat();
    let floors = lookup.floors(&tcp4(), &zeros);
    for (name, time) in ["nothing", "floor put on", "floor take off"].into_iter().zip(floors) {
        println!("TIME {name} {}", time.as_nanos());
    }
    let mut switch = Switch::load();
    let tunnels = tunnels::add_all(&mut switch);
    let to_guest = [&Switch::GUEST, &tcp4()[6..]].concat();
    let key = extract(&to_guest, Switch::VIF, None);
    switch.put(&key, &[Action::Output(Switch::PEER)], 0);
    println!("TIME vif output {}", switch.time(false, &to_guest).as_nanos());
    let frame = tcp4();
    let outward = extract(&frame, Switch::VIF, None);
    for tunnel in &tunnels {
        let (name, is_v6) = (tunnel.spec.tunnel, tunnel.local.is_ipv6());
        let ports = LogicalPorts { ingress: PortKey::new(1), egress: PortKey::new(2).unwrap() };
        let ports = (name == TunnelType::Geneve).then_some(ports);
        let tunnel_key = TunnelKey { datapath: DatapathKey(0), ports };
        let encap = Action::Encap { endpoint: tunnel.id, key: tunnel_key };
        let flow = switch.put(&outward, &[encap], 0);
        println!("TIME vif {name} v6={is_v6} {}", switch.time(false, &frame).as_nanos());
        switch.tables.delete(flow).expect("it is there");
        let (outer, key) = tunnels::arrival(tunnel, &to_guest, &tunnel_key);
        let flow = switch.put(&key, &[Action::Output(Switch::PEER)], 0);
        assert_eq!(switch.uplink(&outer).bytes, to_guest);
        println!("TIME uplink {name} v6={is_v6} {}", switch.time(true, &outer).as_nanos());
        switch.tables.delete(flow).expect("it is there");
    }
}

/// Not a test: `instructions_stay_the_same_when_there_are_a_million_end_points_and_many_megaflows`
/// runs it.
#[test]
#[ignore = "prints times, for the machine that counts instructions"]
fn print_times_at_scale() {
    // Several end points, because one may be far back in its hash chain.
    const TRIED: u32 = 64;
    let frame = [&Switch::GUEST, &tcp4()[6..]].concat();
    for endpoints in [TRIED, 1_000_000_u32] {
        let mut switch = Switch::load_for(endpoints);
        let spec = tunnels::spec(TunnelType::Vxlan);
        let local = "192.0.2.1".parse().expect("an address");
        let tried: Vec<_> = (0..TRIED as u8)
            .map(|host| tunnels::add(&mut switch, &spec, 0, local, [192, 0, 2, 100 + host].into()))
            .collect();
        switch.fill_endpoints(TRIED, endpoints - TRIED);
        let tunnel_key = TunnelKey { datapath: DatapathKey(7), ports: None };
        let mut sums = [0; 2];
        for tunnel in &tried {
            let encap = Action::Encap { endpoint: tunnel.id, key: tunnel_key };
            let flow = switch.put(&extract(&frame, Switch::VIF, None), &[encap], 0);
            sums[0] += switch.time(false, &frame).as_nanos();
            switch.tables.delete(flow).expect("it is there");
            let (outer, key) = tunnels::arrival(tunnel, &frame, &tunnel_key);
            let flow = switch.put(&key, &[Action::Output(Switch::PEER)], 0);
            sums[1] += switch.time(true, &outer).as_nanos();
            switch.tables.delete(flow).expect("it is there");
        }
        let [vif, uplink] = sums.map(|sum| sum / u128::from(TRIED));
        println!("TIME vif endpoints={endpoints} {vif}");
        println!("TIME uplink endpoints={endpoints} {uplink}");
    }
    for megaflows in [1, 100_000_u64] {
        let mut kernel = Lookup::load(FlowTableSizes { flows: megaflows as u32 + 1, cached: 1024 });
        install(&mut kernel, &tcp4(), 1);
        let key = flow::extract(&PacketBuf::from_bytes(&tcp4()), Lookup::PORT, None);
        let mut key = key.expect("it is whole");
        let mut mask = FlowMask::default();
        let usual = [Field::InPort, Field::EthSrc, Field::EthDst, Field::EthType, Field::Ip4Dst];
        usual.iter().for_each(|&field| mask.add(field));
        // The source addresses of the megaflows. 0 stands for the one that `install` added.
        let mut sources = vec![0];
        for source in 1..megaflows {
            key.set(Field::EthSrc, u128::from(source));
            let megaflow = KernelMatch::new(&key, &mask).expect("bits that the key holds");
            match kernel.tables.put(&megaflow, EXECUTED) {
                Ok(_) => sources.push(source),
                // The seed of the hash is random, so a bucket's chain is full in some runs.
                Err(MapError::ChainFull) => {}
                Err(error) => panic!("megaflow {source}: {error}"),
            }
        }
        let refused = megaflows - sources.len() as u64;
        assert!(refused <= 2, "{refused} of {megaflows} megaflows were refused");
        // Look up megaflows from the first to the last that were added.
        let mut sums = [0; 2];
        for part in 0..TRIED as usize {
            let mut frame = tcp4();
            let source = sources[part * sources.len() / TRIED as usize];
            if source > 0 {
                frame[6..12].copy_from_slice(&source.to_be_bytes()[2..]);
            }
            let times = kernel.times(&frame, REPEAT / TRIED);
            let of = |name| times.iter().find(|time| time.0 == name).expect("a program").1;
            sums[0] += of("lookup").as_nanos();
            sums[1] += of("search").as_nanos();
        }
        let [lookup, search] = sums.map(|sum| sum / u128::from(TRIED));
        println!("TIME lookup megaflows={megaflows} {lookup}");
        println!("TIME search megaflows={megaflows} {search}");
    }
}

/// Not a test: `instructions_are_bounded_when_hashes_collide` runs it.
#[test]
#[ignore = "prints times, for the machine that counts instructions"]
fn print_times_in_chains() {
    let frame = tcp6();
    for chain in [1, 8] {
        let mut kernel = Lookup::load_in_one_chain(FlowTableSizes { flows: 1000, cached: 1024 });
        // The first one is last in the chain.
        install(&mut kernel, &frame, 1);
        let key = extract(&frame, Lookup::PORT, None);
        let mut mask = FlowMask::default();
        let usual = [Field::InPort, Field::EthSrc, Field::EthDst, Field::EthType, Field::Ip4Dst];
        usual.iter().for_each(|&field| mask.add(field));
        for source in 1..chain {
            let mut other = key.clone();
            other.set(Field::EthSrc, source);
            let megaflow = KernelMatch::new(&other, &mask).expect("bits that the key holds");
            kernel.tables.put(&megaflow, EXECUTED).expect("there is room");
        }
        let found = kernel.search(&frame).expect("it is there");
        assert_eq!(found.0, 1);
        let times = kernel.times(&frame, REPEAT);
        let (_, search) = times.iter().find(|time| time.0 == "search").expect("a program");
        println!("TIME megaflows={chain} {}", search.as_nanos());
    }
    for chain in [1, 16] {
        let mut switch = Switch::load_in_one_chain();
        let spec = tunnels::spec(TunnelType::Vxlan);
        let local = "192.0.2.1".parse().expect("an address");
        let mut add =
            |host: u8| tunnels::add(&mut switch, &spec, 0, local, [192, 0, 2, host].into());
        let tunnel = add(100);
        for host in 1..chain {
            add(100 + host);
        }
        let frame = [&Switch::GUEST, &tcp4()[6..]].concat();
        let tunnel_key = TunnelKey { datapath: DatapathKey(7), ports: None };
        let (outer, key) = tunnels::arrival(&tunnel, &frame, &tunnel_key);
        switch.put(&key, &[Action::Output(Switch::PEER)], 0);
        assert_eq!(switch.uplink(&outer).bytes, frame);
        println!("TIME senders={chain} {}", switch.time(true, &outer).as_nanos());
    }
}

fn extract(frame: &[u8], port: PortNo, tunnel: Option<&TunnelInfo>) -> FlowKey {
    flow::extract(&PacketBuf::from_bytes(frame), port, tunnel).expect("it is whole")
}

#[test]
fn instructions_of_a_hit_stay_within_their_limit() {
    testkit::require_vm!();
    let mut vm = debian();
    let printed =
        vm.run("/bin/program --ignored --exact instruction_counts::print_times --nocapture");
    // The first line also has output of the test harness.
    let times = printed.lines().filter_map(|line| line.split_once("TIME "));
    let times: Vec<_> = times.map(|(_, time)| time).collect();
    println!("Linux {}\n{}", vm.run("uname -r").trim(), times.join("\n"));
    let time = |what: &str| -> u32 {
        let found = times.iter().find_map(|line| line.strip_prefix(what));
        found.and_then(|time| time.trim().parse().ok()).unwrap_or_else(|| panic!("{printed}"))
    };
    for (frame, limit) in [("tcp4", HIT4_INSTRUCTIONS), ("tcp6", HIT6_INSTRUCTIONS)] {
        for way in ["lookup", "tunnel"] {
            let hit = time(&format!("{frame} 1 {way}")) - time(&format!("{frame} 1 empty"));
            assert!(hit <= limit, "{frame} {way}: {hit} instructions\n{printed}");
        }
    }
}

#[test]
fn instructions_stay_the_same_when_there_are_a_million_end_points_and_many_megaflows() {
    testkit::require_vm!();
    let mut vm = debian();
    let printed = vm
        .run("/bin/program --ignored --exact instruction_counts::print_times_at_scale --nocapture");
    let lines = printed.lines().filter_map(|line| line.split_once("TIME ")?.1.rsplit_once(' '));
    let times: Vec<(&str, u32)> =
        lines.filter_map(|(name, time)| Some((name, time.trim().parse().ok()?))).collect();
    assert_eq!(times.len(), 8, "{printed}");
    for &(name, time) in &times {
        println!("{name}: {time}");
        let (what, _) = name.split_once('=').expect(&printed);
        let (_, few) = times.iter().find(|(name, _)| name.starts_with(what)).expect(&printed);
        // A search may walk a longer chain. That matters for the search alone, and little for a
        // whole packet.
        let percent = if what.starts_with("search") { 120 } else { 103 };
        assert!(u64::from(time) * 100 <= u64::from(*few) * percent, "{name}: {time}, not {few}");
    }
}

/// The limit for each further entry that is compared.
const COMPARISON_INSTRUCTIONS: u32 = 115;

/// Compares the longest hash chains that the programs allow with the shortest.
#[test]
fn instructions_are_bounded_when_hashes_collide() {
    testkit::require_vm!();
    let mut vm = debian();
    let printed = vm.run(
        "/bin/program --ignored --exact instruction_counts::print_times_in_chains --nocapture",
    );
    let lines = printed.lines().filter_map(|line| line.split_once("TIME ")?.1.rsplit_once(' '));
    let times: Vec<(&str, u32)> =
        lines.filter_map(|(name, time)| Some((name, time.trim().parse().ok()?))).collect();
    let [few, many, one, all] = times[..] else { panic!("{printed}") };
    for ((_, short), (name, long)) in [(few, many), (one, all)] {
        let further: u32 = name.split_once('=').and_then(|(_, len)| len.parse().ok()).unwrap_or(0);
        println!("{name}: {long}, with one: {short}");
        let limit = short + (further - 1) * COMPARISON_INSTRUCTIONS;
        assert!(short < long && long <= limit, "{name}: {long} instructions, not {short}");
    }
}

/// Limits for a small TCP segment over IPv4, including the helpers that the program calls.
const OUTPUT_INSTRUCTIONS: u32 = 565;
const ENCAP_INSTRUCTIONS: u32 = 1225;
const DECAP_INSTRUCTIONS: u32 = 1225;
/// Packets of a test run lack headroom for the longest headers, so the kernel copies them.
const MOVED_INSTRUCTIONS: u32 = 2030;

#[test]
fn instructions_of_the_programs_stay_within_their_limits() {
    testkit::require_vm!();
    let mut vm = debian();
    let printed = vm
        .run("/bin/program --ignored --exact instruction_counts::print_program_times --nocapture");
    let lines = printed.lines().filter_map(|line| line.split_once("TIME ")?.1.rsplit_once(' '));
    let times: Vec<(&str, u32)> =
        lines.filter_map(|(name, time)| Some((name, time.trim().parse().ok()?))).collect();
    let nothing = times.iter().find(|(name, _)| *name == "nothing").expect(&printed).1;
    assert!(times.len() > 20, "{printed}");
    for &(name, time) in &times {
        let instructions = time - nothing;
        println!("{name}: {instructions}");
        let limit = match name {
            "vif output" => OUTPUT_INSTRUCTIONS,
            "vif vxlan v6=true" | "vif geneve v6=true" => MOVED_INSTRUCTIONS,
            _ if name.starts_with("vif") => ENCAP_INSTRUCTIONS,
            _ => DECAP_INSTRUCTIONS,
        };
        assert!(instructions <= limit, "{name}: {instructions} instructions\n{printed}");
    }
}
