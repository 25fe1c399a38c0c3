//! What reading a frame and looking it up costs: instructions, counted in a virtual machine with Debian's kernel, which is also
//! the proof that the programs load there.

mod common;

use common::frames::{tcp4, tcp6};
use common::lookup::Lookup;
use datapath_bpf::{KernelMatch, Sizes};
use flow::{Field, FlowMask};
use packet::PacketBuf;
use std::path::Path;
use testkit::host::TestHost;
use testkit::vm::Vm;

/// The most that issue 5 allows for parse, key and a hit in the exact-match cache.
const HIT_INSTRUCTIONS: u32 = 500;
/// Enough that the timer's interrupts do not show.
const REPEAT: u32 = 100_000;

/// Masks that the frames of a test do not match by, in front of the one that they do.
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
        kernel.tables.put(&megaflow).expect("there is room");
    }
}

/// Not a test of its own: `instructions_of_a_hit_stay_within_their_limit` runs it in the machine.
#[test]
#[ignore = "prints times, for the machine that counts instructions"]
fn print_times() {
    for (name, frame) in [("tcp4", tcp4()), ("tcp6", tcp6())] {
        for masks in [1, 8, 64] {
            let mut kernel = Lookup::load(Sizes { flows: 1000, cached: 1024 });
            install(&mut kernel, &frame, masks);
            let found = kernel.find(&frame);
            assert!(found.is_some() && kernel.search(&frame) == found);
            for (program, time) in kernel.times(&frame, REPEAT) {
                println!("TIME {name} {masks} {program} {}", time.as_nanos());
            }
        }
    }
}

#[test]
fn instructions_of_a_hit_stay_within_their_limit() {
    testkit::require_vm!();
    let host = TestHost::new("bpf");
    let program = std::env::current_exe().expect("this program has a path");
    let mut vm = Vm::counting(&host, Path::new(&program));
    let printed = vm.run("/bin/program --ignored --exact print_times --nocapture");
    // The first shares its line with what the test harness says.
    let times = printed.lines().filter_map(|line| line.split_once("TIME "));
    let times: Vec<_> = times.map(|(_, time)| time).collect();
    println!("Linux {}\n{}", vm.run("uname -r").trim(), times.join("\n"));
    let time = |what: &str| -> u32 {
        let found = times.iter().find_map(|line| line.strip_prefix(what));
        found.and_then(|time| time.trim().parse().ok()).unwrap_or_else(|| panic!("{printed}"))
    };
    for frame in ["tcp4", "tcp6"] {
        for way in ["lookup", "tunnel"] {
            let hit = time(&format!("{frame} 1 {way}")) - time(&format!("{frame} 1 empty"));
            assert!(hit <= HIT_INSTRUCTIONS, "{frame} {way}: {hit} instructions\n{printed}");
        }
    }
}
