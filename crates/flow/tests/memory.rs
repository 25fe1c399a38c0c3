//! Memory use of remote end points. A test binary of its own, because it measures the whole
//! process.

use flow::{Dscp, EndpointTable, Ttl, TunnelSpec, TunnelType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ENDPOINTS: u32 = 100_000;
const LIMIT_KB: u64 = 20 << 10;

#[test]
fn hundred_thousand_end_points_add_less_than_20_mb() {
    let before_kb = resident_kb();
    let table = table();
    let added_kb = resident_kb().saturating_sub(before_kb);
    println!("{ENDPOINTS} end points: {added_kb} kB");
    assert_eq!(table.len(), ENDPOINTS as usize);
    assert!(added_kb > 1000, "{added_kb} kB: this does not measure the table");
    assert!(added_kb < LIMIT_KB, "{added_kb} kB");
}

/// End points of STT, whose headers are the longest, half of them over IPv4 and half over IPv6.
fn table() -> EndpointTable {
    let spec = TunnelSpec {
        tunnel: TunnelType::Stt,
        port: 7471,
        checksum: true,
        ttl: Ttl::default(),
        dscp: Dscp::Fixed(0),
        key: false,
        sequence: false,
        path_mtu_bytes: 1500,
        clamp_mss: false,
    };
    let v4 = |number: u32| IpAddr::from(Ipv4Addr::from(10 << 24 | number));
    let v6 = |number: u32| IpAddr::from(Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(number)));
    let mut table = EndpointTable::new(49_152, 64);
    for number in 1..=ENDPOINTS / 2 {
        for (local, remote) in [(v4(0), v4(number)), (v6(0), v6(number))] {
            table.add(&spec, local, remote).expect("an end point can be added");
        }
    }
    table.shrink_to_fit();
    table
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}
