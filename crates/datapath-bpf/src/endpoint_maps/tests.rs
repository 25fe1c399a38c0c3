use super::*;
use crate::abi;
use crate::load::{MapSizes, load};
use crate::struct_bytes::u32_at;
use flow::{Dscp, EntropySeed, Ttl, TunnelType};
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::time::Instant;

const VXLAN: TunnelSpec = TunnelSpec {
    tunnel: TunnelType::Vxlan,
    port: 4789,
    checksum: false,
    ttl: Ttl::Fixed(64),
    dscp: Dscp::Inherit,
    key: false,
    sequence: false,
    path_mtu_bytes: 1500,
    clamp_mss: false,
};

/// End points with consecutive addresses, every `v6`th over IPv6.
fn underlay(count: u32, v6: u32) -> Underlay {
    let here = |is_v6| match is_v6 {
        true => IpAddr::from(Ipv6Addr::from_bits(0xfd00_u128 << 112 | 1)),
        false => IpAddr::from([10, 255, 0, 1]),
    };
    let endpoint = |number: u32| {
        let is_v6 = number.is_multiple_of(v6);
        let remote = match is_v6 {
            true => IpAddr::from(Ipv6Addr::from_bits(0xfd01_u128 << 112 | u128::from(number))),
            false => IpAddr::from((0x0a00_0000 + number).to_be_bytes()),
        };
        EndpointConfig { id: EndpointId(number), spec: VXLAN, local: here(is_v6), remote }
    };
    let tunnel =
        |is_v6| TunnelConfig { port: PortNo(70_000), spec: VXLAN, local: here(is_v6), group: None };
    Underlay {
        tunnels: [false, true].map(tunnel).to_vec(),
        endpoints: (0..count).map(endpoint).collect(),
        ..Underlay::default()
    }
}

/// The numbers of the end points in each chain.
fn chains(endpoint_maps: &EndpointMaps, sources: &MapHandle) -> Vec<Vec<u32>> {
    let read = |map: &MapHandle| {
        let size = sys::entry_len(map).unwrap();
        let bytes = sys::read(map, 0, map.max_entries()).unwrap();
        (bytes, size)
    };
    let (heads, _) = read(sources);
    let (endpoints, size) = read(&endpoint_maps.endpoints_map);
    let next = |after: u32| {
        let at = after as usize * size + offset_of!(weft_endpoint, next);
        u32_at(&endpoints, at).checked_sub(1)
    };
    let chain = |head: &[u8]| std::iter::successors(u32_at(head, 0).checked_sub(1), |at| next(*at));
    heads.chunks_exact(4).map(|head| chain(head).collect()).collect()
}

/// Memory that a map takes in the kernel, in bytes.
fn bytes(map: &MapHandle) -> u64 {
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn each_of_a_million_end_points_takes_less_than_200_bytes_of_kernel_memory() {
    testkit::require_root!();
    const COUNT: u32 = 1_000_000;
    let loaded = load(MapSizes::new(16, COUNT as usize), &EntropySeed::random()).expect("programs");
    let mut endpoint_maps = EndpointMaps::new(&loaded).unwrap();
    let underlay = underlay(COUNT, u32::MAX);
    let begun = Instant::now();
    endpoint_maps.add_all(&underlay).unwrap();
    let took = begun.elapsed();
    let sources = loaded.map("weft_sources").unwrap();
    let maps = [
        &endpoint_maps.endpoints_map,
        &sources,
        endpoint_maps.locals.map(),
        &endpoint_maps.classes_map,
    ];
    let each = maps.map(bytes).iter().sum::<u64>() / u64::from(COUNT);
    println!("{COUNT} end points in {took:?}, {each} bytes each");
    assert!(each < 200, "{each} bytes");
    let chains = chains(&endpoint_maps, &sources);
    assert_eq!(chains.iter().map(Vec::len).sum::<usize>(), COUNT as usize, "all are found");
    let longest = chains.iter().map(Vec::len).max().unwrap_or_default();
    println!("the longest chain has {longest}");
    assert!(longest <= abi::WEFT_MAX_SOURCES as usize);
}

#[test]
fn inherited_next_hop_is_used_until_it_is_replaced_or_discarded() {
    testkit::require_root!();
    let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
    let mut endpoint_maps = EndpointMaps::new(&loaded).unwrap();
    endpoint_maps.add_all(&underlay(4, u32::MAX)).unwrap();
    let hop = |last| NextHop {
        destination: wire::MacAddr([2, 0, 0, 0, 0, last]),
        source: wire::MacAddr([2, 0, 0, 0, 1, 1]),
    };
    let next_hop_of = |endpoint_maps: &EndpointMaps, id: u32| {
        let entry = endpoint_maps.endpoints_map.lookup(&id.to_ne_bytes(), MapFlags::ANY);
        let entry = entry.unwrap().unwrap();
        let is_resolved =
            u32_at(&entry, offset_of!(weft_endpoint, flags)) & abi::WEFT_ENDPOINT_RESOLVED != 0;
        is_resolved.then(|| entry[offset_of!(weft_endpoint, eth_dst) + 5])
    };
    let all_next_hops =
        |endpoint_maps: &EndpointMaps| [0, 1, 2, 3].map(|id| next_hop_of(endpoint_maps, id));
    endpoint_maps.resolve(EndpointId(3), Some(hop(3))).unwrap();
    // The previous daemon knew no next hop for the third.
    let third = endpoint_entries::words(IpAddr::from([10, 0, 0, 2]));
    endpoint_maps.inherit(|remote| (*remote != third).then(|| hop(7))).unwrap();
    assert_eq!(all_next_hops(&endpoint_maps), [Some(7), Some(7), None, Some(3)]);
    endpoint_maps.resolve(EndpointId(1), Some(hop(1))).unwrap();
    assert_eq!(all_next_hops(&endpoint_maps), [Some(7), Some(1), None, Some(3)]);
    endpoint_maps.discard_inherited().unwrap();
    assert_eq!(all_next_hops(&endpoint_maps), [None, Some(1), None, Some(3)]);
}

#[test]
fn chains_contain_exactly_the_current_end_points() {
    testkit::require_root!();
    let loaded = load(MapSizes::new(16, 1000), &EntropySeed::random()).expect("programs");
    let mut endpoint_maps = EndpointMaps::new(&loaded).unwrap();
    let sources = loaded.map("weft_sources").unwrap();
    let all = underlay(1000, 3);
    let mut wanted = all.clone();
    for (divisor, rest) in [(1, 0), (7, 3), (2, 1), (5, 0), (1, 0), (1001, 1000)] {
        wanted.endpoints =
            all.endpoints.iter().filter(|end| end.id.0 % divisor == rest).copied().collect();
        endpoint_maps.forget(&wanted).unwrap();
        endpoint_maps.add_all(&wanted).unwrap();
        let mut found: Vec<u32> = chains(&endpoint_maps, &sources).into_iter().flatten().collect();
        found.sort_unstable();
        let ids: Vec<u32> = wanted.endpoints.iter().map(|end| end.id.0).collect();
        assert_eq!(found, ids, "every {divisor}th");
    }
}
#[test]
fn chains_contain_only_routed_end_points_when_the_reverse_path_is_checked() {
    testkit::require_root!();
    let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
    let mut endpoint_maps = EndpointMaps::new(&loaded).unwrap();
    let sources = loaded.map("weft_sources").unwrap();
    let found = |endpoint_maps: &EndpointMaps| {
        let mut found: Vec<u32> = chains(endpoint_maps, &sources).into_iter().flatten().collect();
        found.sort_unstable();
        found
    };
    let change = |numbers: &[u32], is_routed| {
        numbers.iter().map(|number| (EndpointId(*number), is_routed)).collect::<Vec<_>>()
    };
    let plain = underlay(6, 3);
    let checked = Underlay { checks_reverse_path: true, ..plain.clone() };
    // Routes are known before the end points.
    endpoint_maps.set_routed(&change(&[1, 2, 4], true)).unwrap();
    endpoint_maps.add_all(&checked).unwrap();
    assert_eq!(found(&endpoint_maps), [1, 2, 4]);
    endpoint_maps.set_routed(&change(&[2, 3], false)).unwrap();
    assert_eq!(found(&endpoint_maps), [1, 4]);
    endpoint_maps.set_routed(&change(&[0], true)).unwrap();
    assert_eq!(found(&endpoint_maps), [1, 4], "a grace period comes first");
    endpoint_maps.add_accepted(&change(&[0], true)).unwrap();
    assert_eq!(found(&endpoint_maps), [0, 1, 4]);
    for (underlay, expected) in [(&plain, &[0, 1, 2, 3, 4, 5][..]), (&checked, &[][..])] {
        endpoint_maps.forget(underlay).unwrap();
        endpoint_maps.add_all(underlay).unwrap();
        assert_eq!(found(&endpoint_maps), expected);
    }
    endpoint_maps.forget(&Underlay::default()).unwrap();
    assert_eq!(found(&endpoint_maps), [0; 0]);
}
