//! [`Switch`]: the VIF and uplink programs, with maps that the tests fill.

use super::abi;
use super::encode::{self, Bytes};
use datapath_bpf::{
    ActionListNo, FlowNo, FlowTableSizes, FlowTables, KernelKey, KernelMatch, LoadedObject,
};
use flow::{Action, EndpointId, EndpointTable, EntropySeed, FlowKey, FlowMask, PortNo};
use generated::{DatapathSkel, DatapathSkelBuilder, types};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Map, MapCore, MapFlags, ProgramInput, ProgramMut};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

#[allow(unsafe_code, warnings, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/datapath.skel.rs"));
}

pub use super::abi::{TC_ACT_OK as PASSED, TC_ACT_REDIRECT as REDIRECTED, TC_ACT_SHOT as DROPPED};

/// Factors of the hash: one for each word of a key, and two more.
const FACTORS: usize = size_of::<types::weft_key>() / 8 + 2;

/// The header in front of a punted frame: port, time, EtherType.
pub const PUNT_HEADER_LEN: usize = wire::ethernet::HEADER_LEN;

/// The result of running a program on a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunResult {
    pub verdict: u32,
    pub bytes: Vec<u8>,
}

impl RunResult {
    /// Port and frame, if the frame was punted.
    pub fn punted(&self) -> Option<(PortNo, &[u8])> {
        let (header, frame) = self.bytes.split_at_checked(PUNT_HEADER_LEN)?;
        let port = read_punt_header(header.first_chunk()?)?;
        (self.verdict == REDIRECTED).then_some((port, frame))
    }

    /// When the frame was punted, in the programs' clock.
    pub fn punted_ns(&self) -> u64 {
        let (_, time) = self.bytes.split_at(4);
        time.first_chunk().map_or(0, |time| u64::from_ne_bytes(*time))
    }
}

/// The ingress port in the header of a punted frame.
pub fn read_punt_header(header: &[u8; PUNT_HEADER_LEN]) -> Option<PortNo> {
    let (&port, rest) = header.split_first_chunk()?;
    let ethertype = (abi::WEFT_PUNT_ETHERTYPE as u16).to_be_bytes();
    let is_punt = rest[..8] != [0; 8] && rest[8..] == ethertype;
    is_punt.then_some(PortNo(u32::from_be_bytes(port)))
}

fn drop_key(port: PortNo, reason: flow::DropReason) -> u64 {
    u64::from(port.0) << abi::WEFT_DROP_PORT_SHIFT | reason as u64
}

/// The programs, which stay loaded until the process ends. Test runs always use ifindex 1.
pub struct Switch {
    skel: &'static DatapathSkel<'static>,
    pub tables: FlowTables,
    /// Index of the latest action list.
    list: u32,
    pub endpoints: EndpointTable,
}

impl Switch {
    /// The guest port that frames come from.
    pub const VIF: PortNo = PortNo(3);
    /// Ports that frames go to: one end of a veth pair, and another device.
    pub const PEER: PortNo = PortNo(4);
    pub const DEVICE: PortNo = PortNo(5);
    /// The ingress port of tunnels and links.
    pub const TUNNEL: PortNo = PortNo(500);
    pub const UPLINK: PortNo = PortNo(1_000_000);
    /// MAC address of the guest at [`Switch::PEER`].
    pub const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 4];
    /// Longest untagged frame of all ports in bytes.
    pub const MAX_LEN: u32 = 3014;
    pub const ENTROPY_BASE: u16 = 49152;
    pub const ENTROPY_PORTS: u16 = 16384;
    const SIZES: FlowTableSizes = FlowTableSizes { flows: 1000, cached: 256 };

    pub fn load() -> Self {
        Self::load_for(1024)
    }

    /// Loads the programs with maps for this many end points.
    pub fn load_for(room: u32) -> Self {
        Self::load_with(room, FlowTableSizes::hash_factors())
    }

    /// Loads the programs so that all senders are in one hash chain, and all keys in one cache
    /// entry. A chain holds `WEFT_MAX_SOURCES` senders.
    pub fn load_in_one_chain() -> Self {
        Self::load_with(abi::WEFT_MAX_SOURCES, [0; FACTORS])
    }

    fn load_with(room: u32, hash_factors: [u64; FACTORS]) -> Self {
        let seed = EntropySeed::random();
        let endpoints = EndpointTable::with_seed(Self::ENTROPY_BASE, Self::ENTROPY_PORTS, seed);
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = DatapathSkelBuilder::default().open(object).expect("the object is whole");
        let constants = open.maps.rodata_data.as_deref_mut().expect("there are constants");
        constants.bucket_shift = Self::SIZES.bucket_shift();
        let sources = 2 * room.next_power_of_two();
        constants.source_shift = 64 - sources.ilog2();
        constants.cache_shift = Self::SIZES.cache_shift();
        constants.hash_factors = hash_factors;
        constants.entropy_factors = *seed.factors();
        let config =
            &mut open.maps.bss_data.as_deref_mut().expect("there are variables").weft_config;
        config.uplink_ifindex = 1;
        config.uplink_port = Self::UPLINK.0;
        config.entropy_base = Self::ENTROPY_BASE;
        config.entropy_mask = Self::ENTROPY_PORTS - 1;
        Self::SIZES.apply(open.open_object_mut()).expect("the maps have these sizes");
        for mut map in open.open_object_mut().maps_mut() {
            let entries = match map.name().to_str() {
                Some("weft_endpoints") => room,
                Some("weft_sources") => sources,
                _ => continue,
            };
            map.set_max_entries(entries).expect("a map has this size");
        }
        let skel: &'static DatapathSkel<'static> =
            Box::leak(Box::new(open.load().expect("the verifier takes the programs")));
        let loaded = LoadedObject::of(skel.object()).expect("there are files left to open");
        let tables = FlowTables::new(&loaded).expect("the object has the tables");
        let switch = Self { skel, tables, list: 0, endpoints };
        switch.put_ports();
        switch.punt_to(Some(1));
        switch
    }

    /// The kernel's ids of the loaded programs.
    pub fn program_ids(&self) -> Vec<u32> {
        super::program_ids(self.skel.object())
    }

    /// Sets the device that frames are punted to.
    pub fn punt_to(&self, ifindex: Option<u32>) {
        let (map, first) = (self.map("weft_punt_device"), 0_u32.to_ne_bytes());
        let result = match ifindex {
            Some(ifindex) => map.update(&first, &ifindex.to_ne_bytes(), MapFlags::ANY),
            None => map.delete(&first),
        };
        result.expect("can be written");
    }

    /// Adds all ports, with the loopback device as the device of each.
    fn put_ports(&self) {
        self.set_device(1, Self::VIF);
        self.set_port(Self::VIF, 1, 0, 0);
        self.set_port(Self::PEER, 1, abi::WEFT_PORT_PEER, guest());
        self.set_port(Self::DEVICE, 1, 0, 0);
    }

    pub fn set_device(&self, ifindex: u32, port: PortNo) {
        self.set_device_at(ifindex % abi::WEFT_DEVICES, ifindex, port);
    }

    pub fn set_device_at(&self, place: u32, ifindex: u32, port: PortNo) {
        self.update("weft_devices", place, &Bytes::new().u32(ifindex).u32(port.0));
    }

    /// Writes the map entry of a port. `mac` is as in a key, `flags` as in `struct weft_port`.
    pub fn set_port(&self, port: PortNo, ifindex: u32, flags: u32, mac: u64) {
        let bytes = Bytes::new().u32(ifindex).u32(flags).u32(Self::MAX_LEN).u32(0).u64(mac);
        self.update("weft_ports", port.0, &bytes);
        if flags & abi::WEFT_PORT_WATCHED != 0 {
            self.configure(offsets::WATCH_FRAMES, &1_u32.to_ne_bytes());
        }
    }

    /// The VIF program and the uplink program, for attaching them.
    pub fn programs(&self) -> [BorrowedFd<'_>; 2] {
        [self.skel.progs.weft_vif.as_fd(), self.skel.progs.weft_uplink.as_fd()]
    }

    pub fn map(&self, name: &str) -> Map<'static> {
        let maps = self.skel.object().maps();
        maps.into_iter().find(|map| map.name() == name).unwrap_or_else(|| panic!("no map {name}"))
    }

    /// Memory that the kernel has allocated for all maps.
    pub fn map_memory_bytes(&self) -> u64 {
        let bytes = |map: Map<'_>| {
            let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
            let info = std::fs::read_to_string(path).expect("the map is open");
            let line = info.lines().find_map(|line| line.strip_prefix("memlock:"));
            line.and_then(|bytes| bytes.trim().parse::<u64>().ok()).expect("a number of bytes")
        };
        self.skel.object().maps().map(bytes).sum()
    }

    pub fn update(&self, map: &str, number: u32, value: &Bytes) {
        self.update_key(map, &Bytes::new().u32(number), value);
    }

    pub fn update_key(&self, map: &str, key: &Bytes, value: &Bytes) {
        let done = self.map(map).update(key.as_slice(), value.as_slice(), MapFlags::ANY);
        done.unwrap_or_else(|error| panic!("{map}: {error}"));
    }

    /// Writes bytes of the programs' settings; see [`offsets`].
    pub fn configure(&self, offset: usize, value: &[u8]) {
        let maps = self.skel.object().maps();
        let map = maps.into_iter().find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let map = map.expect("there are variables");
        let key = 0_u32.to_ne_bytes();
        let mut bytes = map.lookup(&key, MapFlags::ANY).expect("can be read").expect("is there");
        bytes[offset..offset + value.len()].copy_from_slice(value);
        map.update(&key, &bytes, MapFlags::ANY).expect("can be written");
    }

    /// Writes an end point of the reference table to the maps, as number `id` of class `class`.
    pub fn put_endpoint(
        &self,
        id: EndpointId,
        class: u16,
        spec: &flow::TunnelSpec,
        local: std::net::IpAddr,
    ) {
        let endpoint = self.endpoints.get(id).expect("it is there");
        let template = endpoint.template().as_bytes();
        self.update(
            "weft_classes",
            class.into(),
            &encode::class(spec, local, template, Self::TUNNEL),
        );
        let bytes = encode::endpoint(spec, template, class, endpoint.resolved);
        self.update("weft_endpoints", id.0, &bytes);
        self.put_sources(id.0, 1);
    }

    /// Adds end points to the hash table of senders.
    fn put_sources(&self, first: u32, count: u32) {
        let mut row = Bytes::new().u32(first).u32(count).as_slice().to_vec();
        let input = ProgramInput { context_in: Some(&mut row), ..ProgramInput::default() };
        let put = self.skel.progs.sources_put.test_run(input).expect("the program can be run");
        assert_eq!(put.return_value, 0);
    }

    /// Writes copies of end point 0 with consecutive addresses to all numbers from `first` on.
    pub fn fill_endpoints(&self, first: u32, count: u32) {
        const ROW: u32 = 4096;
        let map = self.map("weft_endpoints");
        let like = map.lookup(&[0; 4], MapFlags::ANY).expect("can be read").expect("is there");
        let next = offset_of!(types::weft_endpoint, next);
        for first in (first..first + count).step_by(ROW as usize) {
            let numbers: Vec<u32> = (first..(first + ROW).min(map.max_entries())).collect();
            let keys: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            // Repeats the entry as a whole: field by field, this would dominate the test's run time
            // in the virtual machine.
            let mut entries = like.repeat(numbers.len());
            for (entry, number) in entries.chunks_exact_mut(like.len()).zip(&numbers) {
                entry[..4].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
                entry[next..next + 4].fill(0);
            }
            let count = numbers.len() as u32;
            let put = map.update_batch(&keys, &entries, count, MapFlags::ANY, MapFlags::ANY);
            put.expect("can be written");
            self.put_sources(first, count);
        }
    }

    /// Adds a megaflow for exactly the frames of `key`.
    pub fn put(&mut self, key: &FlowKey, actions: &[Action], max_len: u32) -> FlowNo {
        self.list = self.list % (self.map("weft_actions").max_entries() - 1) + 1;
        let list = encode::list(actions, key, max_len);
        self.update("weft_actions", self.list, &list);
        self.put_action_list(key, ActionListNo(self.list))
    }

    pub fn put_action_list(&mut self, key: &FlowKey, list: ActionListNo) -> FlowNo {
        let mut mask = FlowMask::exact().of_packet();
        for field in
            [flow::Field::TunMetadata1, flow::Field::TunMetadata2, flow::Field::TunMetadata3]
        {
            mask.set(field, 0);
        }
        let megaflow = KernelMatch::new(key, &mask).expect("the key holds it");
        match self.tables.put(&megaflow, list) {
            Err(error) if error.is_full() => {
                self.tables.reclaim().expect("a grace period ends");
                self.tables.put(&megaflow, list).expect("there is room again")
            }
            put => put.expect("there is room"),
        }
    }

    pub fn vif(&self, frame: &[u8]) -> RunResult {
        ran(&self.skel.progs.weft_vif, frame)
    }

    pub fn uplink(&self, frame: &[u8]) -> RunResult {
        ran(&self.skel.progs.weft_uplink, frame)
    }

    /// Removes and returns the key in the only cache entry; see [`Switch::load_in_one_chain`]. A
    /// program has written it there if it found a megaflow whose packets are not punted.
    pub fn take_cached_key(&self) -> Option<KernelKey> {
        const WORDS: usize = size_of::<types::weft_key>() / 8;
        let (map, first) = (self.map("weft_cache"), 0_u32.to_ne_bytes());
        let cpus =
            map.lookup_percpu(&first, MapFlags::ANY).expect("can be read").expect("is there");
        let generation = offset_of!(types::weft_cache_entry, generation);
        let is_filled = |cpu: &&Vec<u8>| cpu[generation..generation + 8] != [0; 8];
        let entry = cpus.iter().find(is_filled)?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(entry.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let empty = vec![vec![0; entry.len()]; cpus.len()];
        map.update_percpu(&first, &empty, MapFlags::ANY).expect("can be written");
        Some(KernelKey::from_words(words))
    }

    /// Ends the time in which packets of a megaflow are punted because an earlier one was.
    pub fn unpin(&self, flow: FlowNo) {
        let (map, key) = (self.map("weft_flows"), flow.0.to_ne_bytes());
        let mut entry = map.lookup(&key, MapFlags::ANY).expect("can be read").expect("is there");
        entry[offset_of!(types::weft_flow, pin)..][..4].fill(0);
        map.update(&key, &entry, MapFlags::ANY).expect("can be written");
    }

    /// As [`Switch::vif`], for a super-packet of this segment size.
    pub fn vif_super(&self, frame: &[u8], gso_size: u32) -> RunResult {
        let mut context = vec![0; SKB_LEN];
        context[GSO_SIZE..GSO_SIZE + 4].copy_from_slice(&gso_size.to_ne_bytes());
        run(&self.skel.progs.weft_vif, frame, Some(&mut context))
    }

    /// Sets the time until which userspace has read all punted packets.
    pub fn punted_read_until(&self, time_ns: u64) {
        self.update("weft_punt_clock", 0, &Bytes::new().u64(time_ns));
    }

    /// The shortest time of a run of the uplink or VIF program. Each run has a new packet, because
    /// the programs change it.
    pub fn time(&self, at_uplink: bool, frame: &[u8]) -> Duration {
        let progs = &self.skel.progs;
        let program = if at_uplink { &progs.weft_uplink } else { &progs.weft_vif };
        let run = || {
            let input = ProgramInput { data_in: Some(frame), repeat: 1, ..ProgramInput::default() };
            program.test_run(input).expect("the program can be run").duration
        };
        (0..50).map(|_| run()).min().unwrap_or_default()
    }

    /// Packets of a port that were dropped for a reason.
    pub fn drops(&self, port: PortNo, reason: flow::DropReason) -> u64 {
        let key = Bytes::new().u64(drop_key(port, reason));
        let cpus = self.map("weft_drops").lookup_percpu(key.as_slice(), MapFlags::ANY);
        sum_words(&cpus.expect("can be read").unwrap_or_default(), 0)
    }

    /// Adds a drop counter; returns false if the map is full.
    pub fn expect_drops(&self, port: PortNo, reason: flow::DropReason) -> bool {
        let cpus = libbpf_rs::num_possible_cpus().expect("there are some");
        let key = Bytes::new().u64(drop_key(port, reason));
        let nothing = vec![vec![0; 8]; cpus];
        self.map("weft_drops").update_percpu(key.as_slice(), &nothing, MapFlags::ANY).is_ok()
    }

    /// Received packets and bytes, sent packets and bytes.
    pub fn counts(&self, port: PortNo) -> [u64; 4] {
        let counters = self.map("weft_port_stats").lookup(&port.0.to_ne_bytes(), MapFlags::ANY);
        let counters = [counters.expect("can be read").expect("is there")];
        let tx = offset_of!(types::weft_port_stats, tx_packets) / 8;
        [0, 1, tx, tx + 1].map(|at| sum_words(&counters, at))
    }

    /// Sent packets and bytes, received packets and bytes.
    pub fn endpoint_counts(&self, id: EndpointId) -> [u64; 4] {
        let endpoint = self.map("weft_endpoints").lookup(&id.0.to_ne_bytes(), MapFlags::ANY);
        let endpoint = endpoint.expect("can be read").expect("is there");
        let first = offset_of!(types::weft_endpoint, tx_packets);
        std::array::from_fn(|at| sum_words(&[endpoint[first..].to_vec()], at))
    }
}

/// Offsets of the settings in the programs' variables.
pub mod offsets {
    use super::generated::types::{bss, weft_config};
    use std::mem::offset_of;

    const CONFIG: usize = offset_of!(bss, weft_config);
    pub const UPLINK_IFINDEX: usize = CONFIG + offset_of!(weft_config, uplink_ifindex);
    pub const UPLINK_MAX_LEN: usize = CONFIG + offset_of!(weft_config, uplink_max_len);
    /// VXLAN's port, followed by the socket's; 16 bits each.
    pub const VXLAN_PORTS: usize = CONFIG + offset_of!(weft_config, vxlan_port);
    pub const WATCH_DROPS: usize = CONFIG + offset_of!(weft_config, watch_drops);
    pub const WATCH_FRAMES: usize = CONFIG + offset_of!(weft_config, watch_frames);
    pub const MISS_NS: usize = CONFIG + offset_of!(weft_config, miss_ns);
    pub const MISS_BURST: usize = CONFIG + offset_of!(weft_config, miss_burst);
    pub const PUNT_LIMIT: usize = CONFIG + offset_of!(weft_config, punt_limit);
    pub const SEGMENT_NS: usize = CONFIG + offset_of!(weft_config, segment_ns);
    pub const SEGMENT_BURST: usize = CONFIG + offset_of!(weft_config, segment_burst);
    pub const PUNT_QUEUE_LEN: usize = CONFIG + offset_of!(weft_config, punt_queue_len);
}

/// [`Switch::GUEST`] as in a key.
pub fn guest() -> u64 {
    Switch::GUEST.iter().fold(0, |mac, &byte| mac << 8 | u64::from(byte)) << 16
}

fn sum_words(cpus: &[Vec<u8>], at: usize) -> u64 {
    let word = |cpu: &Vec<u8>| {
        cpu.as_chunks().0.get(at).map_or(0, |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes))
    };
    cpus.iter().map(word).sum()
}

fn ran(program: &ProgramMut<'_>, frame: &[u8]) -> RunResult {
    run(program, frame, None)
}

/// Length of `struct __sk_buff`, and the place of `gso_size` in it.
const SKB_LEN: usize = 192;
const GSO_SIZE: usize = 176;

pub fn run(program: &ProgramMut<'_>, frame: &[u8], context: Option<&mut [u8]>) -> RunResult {
    let mut bytes = vec![0; frame.len() + 256];
    let input = ProgramInput {
        context_in: context,
        data_in: Some(frame),
        data_out: Some(&mut bytes),
        ..ProgramInput::default()
    };
    let output = program.test_run(input).unwrap_or_else(|e| panic!("{e}: {frame:02x?}"));
    let len = output.data.map_or(0, |data| data.len());
    let verdict = output.return_value;
    bytes.truncate(len);
    RunResult { verdict, bytes }
}
