//! [`Lookup`]: the lookup programs and their maps.

use super::abi;
use datapath_bpf::{ActionListNo, FlowNo, FlowTableSizes, FlowTables, LoadedObject};
use flow::PortNo;
use generated::{TestLookupSkel, TestLookupSkelBuilder};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput, ProgramMut};
use std::mem::{MaybeUninit, offset_of};
use std::time::Duration;

#[allow(unsafe_code, warnings, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/test_lookup.skel.rs"));
}

/// Factors of the hash: one for each word of a key, and two more.
pub const FACTORS: usize = size_of::<generated::types::weft_key>() / 8 + 2;

/// An action list other than "punt", so that programs cache its megaflows. The list does not exist,
/// because the lookup programs execute no actions.
pub const EXECUTED: ActionListNo = ActionListNo(1);

/// The lookup programs, which stay loaded until the process ends.
pub struct Lookup {
    skel: &'static TestLookupSkel<'static>,
    pub tables: FlowTables,
}

impl Lookup {
    /// The ingress port of all frames.
    pub const PORT: PortNo = PortNo(7);

    pub fn load(sizes: FlowTableSizes) -> Self {
        Self::load_with(sizes, FlowTableSizes::hash_factors())
    }

    /// Loads the programs so that all megaflows are in one hash chain, and all keys in one cache
    /// entry.
    pub fn load_in_one_chain(sizes: FlowTableSizes) -> Self {
        Self::load_with(sizes, [0; FACTORS])
    }

    pub fn load_with(sizes: FlowTableSizes, hash_factors: [u64; FACTORS]) -> Self {
        let object = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = TestLookupSkelBuilder::default().open(object).expect("the object is whole");
        let constants = open.maps.rodata_data.as_deref_mut().expect("there are constants");
        constants.bucket_shift = sizes.bucket_shift();
        constants.cache_shift = sizes.cache_shift();
        constants.hash_factors = hash_factors;
        let variables = open.maps.bss_data.as_deref_mut().expect("there are variables");
        variables.in_port = Self::PORT.0;
        variables.tunnel.shape = abi::WEFT_TUNNEL.into();
        variables.tunnel.id = 5;
        sizes.apply(open.open_object_mut()).expect("the maps have these sizes");
        let skel = Box::leak(Box::new(open.load().expect("the verifier takes the programs")));
        let loaded = LoadedObject::of(skel.object()).expect("there are files left to open");
        let tables = FlowTables::new(&loaded).expect("the object has the tables");
        Self { skel, tables }
    }

    /// The kernel's ids of the loaded programs.
    pub fn program_ids(&self) -> Vec<u32> {
        super::program_ids(self.skel.object())
    }

    /// Looks up a frame's megaflow, with the cache.
    pub fn find(&self, frame: &[u8]) -> Option<FlowNo> {
        found(&self.skel.progs.test_lookup, frame)
    }

    /// As [`Lookup::find`], for a frame that arrived by a tunnel with these words of `struct
    /// tunnel`.
    pub fn find_tunnelled(&self, tunnel: [u64; 8], frame: &[u8]) -> Option<FlowNo> {
        let maps = self.skel.object().maps();
        let map = maps.into_iter().find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let (map, first) = (map.expect("there are variables"), 0_u32.to_ne_bytes());
        let mut bytes = map.lookup(&first, MapFlags::ANY).expect("can be read").expect("is there");
        let at = offset_of!(generated::types::bss, tunnel);
        bytes[at..][..64].copy_from_slice(tunnel.map(u64::to_ne_bytes).as_flattened());
        map.update(&first, &bytes, MapFlags::ANY).expect("can be written");
        found(&self.skel.progs.test_tunnel, frame)
    }

    /// [`Lookup::find`] for use in another thread.
    pub fn finder(&self) -> impl Fn(&[u8]) -> Option<FlowNo> + Send + use<> {
        let skel = self.skel;
        move |frame| found(&skel.progs.test_lookup, frame)
    }

    /// Looks up a frame's megaflow, without the cache.
    pub fn search(&self, frame: &[u8]) -> Option<FlowNo> {
        found(&self.skel.progs.test_search, frame)
    }

    /// Name and time of a run of each program.
    pub fn times(&self, frame: &[u8], repeat: u32) -> Vec<(&'static str, Duration)> {
        let progs = &self.skel.progs;
        let programs = [
            ("empty", &progs.test_empty),
            ("parse", &progs.test_parse),
            ("lookup", &progs.test_lookup),
            ("search", &progs.test_search),
            ("tunnel", &progs.test_tunnel),
        ];
        programs.map(|(name, program)| (name, run(program, frame, repeat).1)).to_vec()
    }
}

impl Lookup {
    /// Shortest times of a run that does nothing, one that adds an outer header, and one that
    /// removes it.
    pub fn floors(&self, frame: &[u8], outer: &[u8]) -> [Duration; 3] {
        let progs = &self.skel.progs;
        let programs = [
            (&progs.test_empty, frame),
            (&progs.test_put_on, frame),
            (&progs.test_take_off, outer),
        ];
        programs.map(|(program, frame)| {
            let run = |_| run(program, frame, 1).1;
            (0..50).map(run).min().unwrap_or_default()
        })
    }
}

fn run(program: &ProgramMut<'_>, frame: &[u8], repeat: u32) -> (u32, Duration) {
    let input = ProgramInput { data_in: Some(frame), repeat, ..ProgramInput::default() };
    let output = program.test_run(input).expect("the program can be run");
    (output.return_value, output.duration)
}

fn found(program: &ProgramMut<'_>, frame: &[u8]) -> Option<FlowNo> {
    match run(program, frame, 1).0 {
        abi::WEFT_NO_FLOW => None,
        number => Some(FlowNo(number)),
    }
}
