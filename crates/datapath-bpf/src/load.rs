//! Loading the BPF programs: the sizes of their maps ([`MapSizes`]), and why a host cannot run them
//! ([`Unsupported`]).

use crate::flow_tables::FlowTableSizes;
use crate::object::LoadedObject;
use flow::EntropySeed;
use generated::DatapathSkelBuilder;
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use netdev::KernelVersion;
use netdev::capability::{self, Capability};
use std::mem::MaybeUninit;
use std::path::Path;

/// The skeleton contains `unsafe` for memory that it shares with the kernel, and ignores lints.
#[allow(unsafe_code, warnings, missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/datapath.skel.rs"));
}

/// Sizes of the programs' maps. All memory is allocated when they are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapSizes {
    /// Megaflows, and entries of the exact-match cache.
    pub flow_tables: FlowTableSizes,
    /// Distinct action lists.
    pub lists: u32,
    /// Remote end points. Their numbers are below this.
    pub endpoints: u32,
    /// Counters of dropped packets, one for each port and drop reason. When all are in use, further
    /// drops count for the uplink.
    pub drops: u32,
}

impl MapSizes {
    /// Sizes for the given numbers of megaflows and end points, with room for twice as many end
    /// points.
    pub fn new(megaflows: usize, endpoints: usize) -> Self {
        let flows = u32::try_from(megaflows).unwrap_or(u32::MAX).clamp(1, 1 << 24);
        let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX).saturating_mul(2);
        Self {
            flow_tables: FlowTableSizes { flows, cached: flows.clamp(256, 1 << 15) },
            lists: flows.clamp(64, 1 << 16),
            endpoints: endpoints.clamp(1 << 14, 1 << 24),
            // The kernel allocates each counter separately, so this limits the time of loading.
            drops: flows.clamp(1 << 10, 1 << 14),
        }
    }

    /// Hash buckets of end points: at least two for each end point given to [`MapSizes::new`].
    fn sources(self) -> u32 {
        self.endpoints.next_power_of_two().max(2)
    }

    fn apply(self, object: &mut OpenObject) -> Result<(), libbpf_rs::Error> {
        self.flow_tables.apply(object)?;
        for mut map in object.maps_mut() {
            let entries = match map.name().to_str() {
                Some("weft_actions") => self.lists + 1,
                Some(
                    "weft_ports" | "weft_port_stats" | "weft_miss_limit" | "weft_segment_limit"
                    | "weft_punt_queues",
                ) => PORTS,
                Some("weft_endpoints") => self.endpoints,
                Some("weft_sources") => self.sources(),
                Some("weft_drops") => self.drops,
                _ => continue,
            };
            map.set_max_entries(entries)?;
        }
        Ok(())
    }
}

const PORTS: u32 = datapath::config::MAX_PORT.0 + 1;

/// This host cannot run the kernel datapath.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unsupported {
    /// The reason, as a sentence without a full stop.
    pub why: String,
}

/// The oldest kernel that the programs are tested with.
pub const OLDEST_KERNEL: KernelVersion = KernelVersion::new(6, 1);
const EPERM: i32 = 1;
/// The kernel's type information (BTF), which libbpf needs to relocate accesses.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Checks whether this host can run the kernel datapath, by loading the programs once.
///
/// # Errors
/// [`Unsupported`]: the kernel is too old or rejects the programs, or the process lacks a
/// privilege.
pub fn check() -> Result<(), Unsupported> {
    load(MapSizes::new(1, 0), &EntropySeed::random()).map(drop)
}

/// Loads the programs. Dropping the result unloads them.
///
/// # Errors
/// [`Unsupported`]: the kernel is too old or rejects the programs, or the process lacks a
/// privilege.
pub(crate) fn load(sizes: MapSizes, entropy: &EntropySeed) -> Result<LoadedObject, Unsupported> {
    if let Some(version) = KernelVersion::running()
        && version < OLDEST_KERNEL
    {
        let why = format!("Linux {version} is older than {OLDEST_KERNEL}");
        return Err(Unsupported { why });
    }
    // Without CAP_PERFMON, libbpf would try for seconds and report another error.
    if !missing_capabilities().is_empty() {
        return Err(Unsupported { why: denied() });
    }
    try_load(sizes, entropy).map_err(|error| {
        let is_denied = std::error::Error::source(&error)
            .and_then(|source| source.downcast_ref::<std::io::Error>())
            .is_some_and(|source| source.raw_os_error() == Some(EPERM));
        let why = if is_denied || error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
            denied()
        } else if !Path::new(KERNEL_TYPES).exists() {
            format!("the kernel has no BTF type information: {KERNEL_TYPES} does not exist")
        } else {
            format!("the kernel rejects the BPF programs: {error:#}")
        };
        Unsupported { why }
    })
}

/// The capabilities that loading the programs needs and this thread lacks. CAP_SYS_ADMIN includes
/// CAP_BPF and CAP_PERFMON.
pub fn missing_capabilities() -> Vec<Capability> {
    let needed = [Capability::CAP_BPF, Capability::CAP_PERFMON, Capability::CAP_NET_ADMIN];
    let is_admin = capability::missing(&[Capability::CAP_SYS_ADMIN]).is_none();
    capability::all_missing(if is_admin { &needed[2..] } else { &needed })
}

/// Why this process may not load BPF programs.
fn denied() -> String {
    let missing = missing_capabilities();
    if missing.is_empty() {
        return "the kernel forbids BPF programs despite all capabilities \
                (user namespace, lockdown or seccomp)"
            .to_owned();
    }
    let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
    format!("loading BPF programs needs {}", names.join(" and "))
}

fn try_load(sizes: MapSizes, entropy: &EntropySeed) -> Result<LoadedObject, libbpf_rs::Error> {
    let mut object = MaybeUninit::uninit();
    let mut open = DatapathSkelBuilder::default().open(&mut object)?;
    if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
        constants.bucket_shift = sizes.flow_tables.bucket_shift();
        constants.source_shift = 64 - sizes.sources().ilog2();
        constants.cache_shift = sizes.flow_tables.cache_shift();
        constants.hash_factors = FlowTableSizes::hash_factors();
        constants.entropy_factors = *entropy.factors();
    }
    sizes.apply(open.open_object_mut())?;
    let loaded = open.load()?;
    LoadedObject::of(loaded.object()).map_err(|error| match error {
        crate::MapError::Kernel(error) => error,
        other => libbpf_rs::Error::from(std::io::Error::other(other)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the table of capabilities in docs/security.md.
    #[test]
    fn programs_are_refused_with_the_names_of_missing_capabilities() {
        testkit::require_root!();
        // Without CAP_PERFMON, libbpf would print the verifier's log, which is long.
        libbpf_rs::set_print(None);
        let (sizes, entropy) = (MapSizes::new(16, 16), EntropySeed::random());
        let base = [Capability::CAP_NET_ADMIN, Capability::CAP_BPF, Capability::CAP_PERFMON];
        let with = |kept: &[Capability]| {
            let load = || {
                capability::keep_only(kept).expect("capabilities can be given up");
                let tried = try_load(sizes, &entropy).map(drop).map_err(|error| error.to_string());
                (tried, load(sizes, &entropy).map(drop).map_err(|unsupported| unsupported.why))
            };
            std::thread::scope(|scope| scope.spawn(load).join().expect("no panic"))
        };
        assert_eq!(with(&base), (Ok(()), Ok(())));
        for (dropped, name) in [(0, "CAP_NET_ADMIN"), (1, "CAP_BPF"), (2, "CAP_PERFMON")] {
            let mut kept = base.to_vec();
            kept.remove(dropped);
            let (tried, refused) = with(&kept);
            assert!(tried.is_err(), "the kernel refuses without {name}");
            assert_eq!(refused, Err(format!("loading BPF programs needs {name}")));
        }
        let admin = [Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN];
        assert_eq!(with(&admin), (Ok(()), Ok(())), "it includes the two");
    }

    #[test]
    fn map_sizes_are_bounded() {
        let sizes = MapSizes::new(200_000, 1_000_000);
        assert_eq!(
            (sizes.flow_tables.flows, sizes.endpoints, sizes.lists, sizes.drops),
            (200_000, 2_000_000, 1 << 16, 1 << 14)
        );
        assert_eq!(MapSizes::new(usize::MAX, usize::MAX).endpoints, 1 << 24);
        let least = MapSizes::new(0, 0);
        assert_eq!((least.flow_tables.flows, least.drops), (1, 1 << 10));
    }
}
