//! Compiles the BPF programs of `bpf/` and generates Rust's side of the interface that they share
//! with the daemon.
//!
//! From the compiler's type information (BTF) come a skeleton for each object, with the layouts of
//! all maps, and `constants.rs`, with every constant of `bpf/intf.h`. The other way round, the drop
//! reasons of crate `flow` become `drop_reasons.h`, and constants that the user datapath has in
//! common with the programs become `shared_constants.h`. So no number is written in both languages,
//! and a name that one side drops is an error of the compiler on the other.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::Linker;
use libbpf_rs::btf::{Btf, types};
use wire::ethernet::MIN_ETHERTYPE;
use wire::icmp::nd;
use wire::ipv6::MAX_EXTENSION_HEADERS;
use wire::tunnel::geneve;
use wire::{EtherType, Protocol};

/// A fixed version (Debian 12 has it): the verifier's work depends on the compiler's output.
const CLANG: &str = "clang-19";
const CLANG_ARGS: [&str; 6] =
    ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-mcpu=v3"];

/// Each object and the sources that are linked into it.
const OBJECTS: [(&str, &[&str]); 6] = [
    ("control", &["control"]),
    ("datapath", &["control", "vif", "uplink"]),
    ("lab_unclone", &["lab_unclone"]),
    ("test_cut", &["test_cut"]),
    ("test_extract", &["test_extract"]),
    ("test_lookup", &["control", "test_lookup"]),
];

/// Prefixes of the enumerators that become Rust constants: those of `intf.h`, and the return values
/// of tc programs.
const CONSTANT_PREFIXES: [&str; 2] = ["WEFT_", "TC_ACT_"];

/// Number and name of every drop reason, from the list that crate `flow` turns into an enum.
macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $number:literal $variant:ident $name:literal,)+) => {
        const DROP_REASONS: &[(u32, &str)] = &[$(($number, $name),)+];
    };
}

include!("../flow/src/drop_reasons.in");

/// Variant and number of every tunnel type, from the list that crate `flow` turns into an enum.
macro_rules! tunnel_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal in $module:ident,)+) => {
        const TUNNEL_TYPES: &[(&str, u32)] = &[$((stringify!($variant), $number),)+];
    };
}

include!("../flow/src/tunnel/types.in");

#[path = "../flow/src/encap_interface.rs"]
mod encap_interface;
#[allow(dead_code, unused_imports)]
#[path = "../flow/src/field/mod.rs"]
mod field;
#[path = "build/line_info.rs"]
mod line_info;
#[path = "../datapath-user/src/fast_path/punt_interface.rs"]
mod punt_interface;
#[path = "../packet/src/segment_limits.rs"]
mod segment_limits;
#[allow(dead_code)]
#[path = "../flow/src/tun_flags.rs"]
mod tun_flags;

fn main() -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    println!("cargo:rerun-if-changed={}", sources.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    fs::write(out.join("drop_reasons.h"), drop_reasons())?;
    fs::write(out.join("shared_constants.h"), shared_constants())?;
    let interface = preprocess(&sources, &out)?;
    println!("cargo:rustc-env=WEFT_LAYOUT={:016x}", hash(&interface));
    fs::write(out.join("constants.rs"), constants(&interface, &sources, &out)?)?;
    for (name, parts) in OBJECTS {
        let object = out.join(format!("{name}.bpf.o"));
        let mut linker = Linker::new(&object)?;
        for part in parts {
            let source = sources.join(format!("{part}.bpf.c"));
            let object = compile(&source, &sources, &out)?;
            line_info::reduce(&object)?;
            linker.add_file(object)?;
        }
        linker.link().with_context(|| format!("cannot link {name}.bpf.o"))?;
        SkeletonBuilder::new().obj(&object).generate(out.join(format!("{name}.skel.rs")))?;
    }
    Ok(())
}

/// Compiles a source file into the output directory, and returns the object's path.
fn compile(source: &Path, sources: &Path, out: &Path) -> Result<PathBuf> {
    let name = source.file_name().context("a source file has a name")?.to_string_lossy();
    let compiled = out.join(name.replace(".bpf.c", ".part.o"));
    let includes = [format!("-I{}", sources.display()), format!("-I{}", out.display())];
    SkeletonBuilder::new()
        .source(source)
        .obj(&compiled)
        .clang(CLANG)
        .clang_args(CLANG_ARGS.into_iter().map(str::to_owned).chain(includes))
        .build()
        .with_context(|| {
            format!("cannot compile {name} with {CLANG}: is Debian's package {CLANG} installed?")
        })?;
    Ok(compiled)
}

/// The C header with all drop reasons: `DROP_` and the name in upper case.
fn drop_reasons() -> String {
    let mut header = "#pragma once\n\nenum drop_reason {\n".to_owned();
    for (number, name) in DROP_REASONS {
        let _ = writeln!(header, "\tDROP_{} = {number},", name.to_uppercase());
    }
    header + "};\n"
}

/// Numbers of protocols that the programs know, without a prefix: Rust has them from crate `wire`.
const PROTOCOL_NUMBERS: [(&str, u16); 25] = [
    ("PROTO_HOP_BY_HOP", Protocol::HOP_BY_HOP.0 as u16),
    ("PROTO_ICMP", Protocol::ICMP.0 as u16),
    ("PROTO_TCP", Protocol::TCP.0 as u16),
    ("PROTO_UDP", Protocol::UDP.0 as u16),
    ("PROTO_DCCP", Protocol::DCCP.0 as u16),
    ("PROTO_ROUTING", Protocol::ROUTING.0 as u16),
    ("PROTO_FRAGMENT", Protocol::FRAGMENT.0 as u16),
    ("PROTO_GRE", Protocol::GRE.0 as u16),
    ("PROTO_AH", Protocol::AH.0 as u16),
    ("PROTO_ICMP6", Protocol::ICMPV6.0 as u16),
    ("PROTO_NONE", Protocol::NO_NEXT_HEADER.0 as u16),
    ("PROTO_DESTINATION", Protocol::DESTINATION_OPTIONS.0 as u16),
    ("PROTO_SCTP", Protocol::SCTP.0 as u16),
    ("PROTO_UDP_LITE", Protocol::UDP_LITE.0 as u16),
    ("ETHERTYPE_IP4", EtherType::IPV4.0),
    ("ETHERTYPE_ARP", EtherType::ARP.0),
    ("ETHERTYPE_RARP", EtherType::RARP.0),
    ("ETHERTYPE_IP6", EtherType::IPV6.0),
    ("ETHERTYPE_TEB", EtherType::TEB.0),
    ("ETHERTYPE_VLAN", EtherType::VLAN.0),
    ("ETHERTYPE_QINQ", EtherType::QINQ.0),
    ("ETHERTYPE_VLAN_9100", EtherType::VLAN_9100.0),
    ("MIN_ETHERTYPE", MIN_ETHERTYPE),
    ("ND_SOLICIT", nd::NEIGHBOR_SOLICITATION as u16),
    ("ND_ADVERT", nd::NEIGHBOR_ADVERTISEMENT as u16),
];

/// The C header with the protocol numbers, all tunnel types, the positions of fields in the key,
/// and constants of the crates `wire`, `flow`, `packet` and `datapath-user`.
fn shared_constants() -> String {
    let tunnels = TUNNEL_TYPES.iter().map(|(name, number)| (name.to_uppercase(), *number));
    let flag_shift = |flag: u16| u32::from(tun_flags::FLAGS_SHIFT) + flag.trailing_zeros();
    let others = [
        ("TUN_FLAG_DF_SHIFT", flag_shift(tun_flags::DF)),
        ("TUN_FLAG_KEY_SHIFT", flag_shift(tun_flags::KEY)),
        ("TUN_TOS_SHIFT", tun_flags::TOS_SHIFT.into()),
        ("TUN_TTL_SHIFT", tun_flags::TTL_SHIFT.into()),
        // Bit 0: tunnel option 0, which has both logical ports.
        ("TUN_PRESENT_PORTS_SHIFT", tun_flags::METADATA_PRESENT_SHIFT.into()),
        ("LEAST_SEGMENT_LEN", segment_limits::LEAST_SEGMENT_LEN.into()),
        ("SHORT_SEGMENTS", segment_limits::SHORT_SEGMENTS as u32),
        ("SHORT_SEGMENT_LEN", segment_limits::SHORT_SEGMENT_LEN.into()),
        ("PUNT_ETHERTYPE", punt_interface::PUNT_ETHERTYPE.into()),
        ("PUNT_PORT_AT", punt_interface::PUNT_PORT_AT as u32),
        ("PUNT_TIME_AT", punt_interface::PUNT_TIME_AT as u32),
        ("PUNT_ETHERTYPE_AT", punt_interface::PUNT_ETHERTYPE_AT as u32),
        ("TTL_UNLESS_GIVEN", encap_interface::TTL_UNLESS_GIVEN.into()),
        ("ENTROPY_FACTORS", encap_interface::ENTROPY_FACTORS as u32),
        ("ENTROPY_LAST_WORD", encap_interface::ENTROPY_LAST_WORD as u32),
        ("ENTROPY_FINISH", encap_interface::ENTROPY_FINISH as u32),
        ("MAX_EXTENSION_HEADERS", MAX_EXTENSION_HEADERS as u32),
        ("GENEVE_CLASS_OVN", geneve::CLASS_OVN.into()),
        ("GENEVE_TYPE_LOGICAL_PORTS", geneve::TYPE_LOGICAL_PORTS.into()),
        ("ETHERTYPE_NONE", field::ETH_TYPE_NONE.into()),
        ("TAG_PRESENT", field::TAG_PRESENT.into()),
        ("FRAG_FIRST", field::FRAG_FIRST.into()),
        ("FRAG_LATER", field::FRAG_LATER.into()),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value));
    let protocols = PROTOCOL_NUMBERS.map(|(name, number)| format!("#define {name} {number:#x}\n"));
    "#pragma once\n\n".to_owned()
        + &protocols.concat()
        + &c_enum("weft_tunnel", tunnels)
        + &c_enum("weft_shared", others.into_iter())
        + &format!("#define WEFT_PUNT_ALL_READ {:#x}ULL\n", punt_interface::ALL_READ)
        + &field_places()
}

/// Shift and width of each field that a member of `struct weft_key` holds within one word.
fn field_places() -> String {
    let mut places = String::new();
    for field in field::Field::ALL {
        let is_held = matches!(field.spec().kernel, field::KernelWord::Held { .. });
        if is_held && field.width() <= 64 {
            let (name, shift, width) = (field.name().to_uppercase(), field.shift(), field.width());
            let _ = writeln!(places, "#define WEFT_{name}_SHIFT {shift}");
            let _ = writeln!(places, "#define WEFT_{name}_BITS {width}");
        }
    }
    places
}

fn c_enum(name: &str, members: impl Iterator<Item = (String, u32)>) -> String {
    let members = members.map(|(name, value)| format!("\tWEFT_{name} = {value},\n"));
    format!("enum {name} {{\n{}}};\n", members.collect::<String>())
}

/// `bpf/intf.h` and what it includes, without comments, word by word.
fn preprocess(sources: &Path, out: &Path) -> Result<Vec<String>> {
    let preprocessed = Command::new(CLANG)
        .args(["-E", "-P", "-I"])
        .arg(out)
        .arg("-include")
        .arg(sources.join("vmlinux.h"))
        .arg(sources.join("intf.h"))
        .output()
        .with_context(|| format!("cannot run {CLANG}: install Debian's package {CLANG}"))?;
    ensure!(preprocessed.status.success(), "{}", String::from_utf8_lossy(&preprocessed.stderr));
    let text = String::from_utf8_lossy(&preprocessed.stdout);
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Identifies the interface, whatever its comments and spaces are: FNV-1a of its words.
fn hash(interface: &[String]) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = interface.iter().flat_map(|word| word.bytes().chain([b' ']));
    bytes.fold(0xcbf2_9ce4_8422_2325, hash)
}

/// Rust constants for the enumerators of all named enums of the interface.
///
/// The compiler writes only those types to BTF that a variable or function uses. So this compiles
/// a file with one variable of each enum; it is never loaded.
fn constants(interface: &[String], sources: &Path, out: &Path) -> Result<String> {
    let mut probe = "#include \"vmlinux.h\"\n#include \"intf.h\"\n".to_owned();
    for words in interface.windows(3) {
        if let [keyword, name, brace] = words
            && keyword == "enum"
            && brace == "{"
        {
            let _ = writeln!(probe, "enum {name} {name}_variable;");
        }
    }
    let source = out.join("constants.bpf.c");
    fs::write(&source, probe)?;
    let btf = Btf::from_path(compile(&source, sources, out)?)?;
    let mut text = String::new();
    for member in btf
        .type_by_kind::<types::Enum<'_>>()
        .flat_map(|kind| (0..kind.len()).filter_map(move |at| kind.get(at)).collect::<Vec<_>>())
    {
        let name = member.name.unwrap_or_default().to_string_lossy();
        if CONSTANT_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && member.value >= 0 {
            let _ = writeln!(text, "pub const {name}: u32 = {};", member.value);
        }
    }
    ensure!(text.contains("WEFT_"), "the compiler wrote no constants to {}", source.display());
    Ok(text)
}
