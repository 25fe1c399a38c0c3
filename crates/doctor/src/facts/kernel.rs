//! The kernel's version, and its features that weft can use.

use netdev::KernelVersion;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::OnceLock;

/// The features of a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// Its version.
    pub version: KernelVersion,
    /// The kernel has BTF (type information), which weft's BPF programs need to be loaded.
    pub btf: bool,
    /// The BPF JIT compiler is on; `None` when the sysctl cannot be read.
    pub jit: Option<bool>,
    /// BPF programs can be attached with tcx (Linux 6.6).
    pub tcx: bool,
    /// BPF programs can be attached to a clsact qdisc, which is built in or a loadable module.
    pub clsact: bool,
    /// The kfuncs that weft can use, and whether the kernel has them.
    pub kfuncs: Vec<(&'static str, bool)>,
    /// A TAP accepts super-packets that are already encapsulated in UDP (Linux 6.17); `None` when
    /// this could not be tested.
    pub tun_tunnel_gso: Option<bool>,
}

/// The kfuncs (kernel functions callable from BPF) that weft can use.
const KFUNCS: [&str; 2] = ["bpf_cast_to_kern_ctx", "bpf_dynptr_from_skb"];
const BTF: &str = "/sys/kernel/btf/vmlinux";

impl Kernel {
    /// Reads the features of the running kernel.
    pub fn read() -> Self {
        let release = KernelVersion::running_release().unwrap_or_default();
        let names = BtfStrings::of_kernel();
        let jit = fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").ok();
        Self {
            version: KernelVersion::parse(&release).unwrap_or_default(),
            btf: !names.0.is_empty(),
            jit: jit.map(|text| text.trim() != "0"),
            tcx: names.has("tcx_prog_attach"),
            clsact: names.has("clsact_init") || has_module("sch_ingress", &release),
            kfuncs: KFUNCS.map(|name| (name, names.has(name))).to_vec(),
            tun_tunnel_gso: netdev::tap::supports_tunnel_gso().ok(),
            release,
        }
    }
}

/// True when GRO of this kernel does not merge segments behind in-band VLAN tags. That merging
/// needs CONFIG_VLAN_8021Q; if 802.1Q is a module, its GRO part is still built in. A kernel without
/// BTF is assumed to merge them, as all distribution kernels do.
pub(super) fn tags_stop_gro() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let names = BtfStrings::of_kernel();
        !names.0.is_empty() && !names.has("vlan_gro_receive")
    })
}

/// True when the module is loaded or can be loaded from a file.
fn has_module(name: &str, release: &str) -> bool {
    let is_loaded = fs::exists(format!("/sys/module/{name}")).unwrap_or(false);
    is_loaded || {
        let files = fs::read_to_string(format!("/lib/modules/{release}/modules.dep"));
        has_file(&files.unwrap_or_default(), name)
    }
}

/// True when modules.dep lists a file of this module. A line holds a file and its dependencies.
fn has_file(modules: &str, name: &str) -> bool {
    let of_line = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split('.').next() == Some(name)
    };
    modules.lines().any(of_line)
}

/// The strings of BTF, each terminated by a zero byte. They include the names of all functions of
/// the kernel, but not of functions that were compiled out.
struct BtfStrings(Vec<u8>);

impl BtfStrings {
    /// The strings of the running kernel; none if it has no BTF.
    fn of_kernel() -> Self {
        File::open(BTF).and_then(Self::read).unwrap_or(Self(Vec::new()))
    }

    /// Reads only the strings: more than half of the megabytes of BTF are types.
    fn read(mut file: impl Read + Seek) -> io::Result<Self> {
        // struct btf_header of linux/btf.h: its length, and the offset and length of the strings
        // after it.
        let mut header = [0; 24];
        file.read_exact(&mut header)?;
        let words: &[[u8; 4]] = header.as_chunks().0;
        let [header_len, str_off, str_len] = [1, 4, 5].map(|at| u32::from_ne_bytes(words[at]));
        file.seek(SeekFrom::Start(u64::from(header_len) + u64::from(str_off)))?;
        let mut strings = Vec::new();
        file.take(str_len.into()).read_to_end(&mut strings)?;
        Ok(Self(strings))
    }

    fn has(&self, name: &str) -> bool {
        let mut needle = vec![0];
        needle.extend(name.as_bytes());
        needle.push(0);
        memchr::memmem::find(&self.0, &needle).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_by_the_names_of_their_files() {
        let modules = "kernel/net/sched/sch_ingress.ko.xz:\nkernel/net/sched/cls_bpf.ko: \
                       kernel/a/sch_fq.ko\n";
        assert!(has_file(modules, "sch_ingress") && has_file(modules, "cls_bpf"));
        assert!(
            !has_file(modules, "sch_fq") && !has_file(modules, "ingress") && !has_file("", "x")
        );
    }

    #[test]
    fn names_are_found_whole_only() {
        let names = BtfStrings(b"\0clsact_init_net\0tcx\0bpf_cast\0".to_vec());
        assert!(names.has("tcx") && names.has("bpf_cast"));
        assert!(!names.has("clsact_init") && !names.has("cast") && !names.has("bpf"));
        assert!(!BtfStrings(Vec::new()).has("tcx"));
    }

    #[test]
    fn strings_are_read_without_the_types_before_them() {
        // Magic number and version; a header of 32 bytes, 8 bytes of types, 6 bytes of strings.
        let words = [0x0001_eb9f, 32, 0, 8, 8, 6, 0, 0].map(u32::to_ne_bytes);
        let file = [words.as_flattened(), b"\0types\0\0", b"\0tcx\0x", b"behind\0"].concat();
        let names = BtfStrings::read(io::Cursor::new(file)).unwrap();
        assert_eq!(names.0, b"\0tcx\0x");
        assert!(BtfStrings::read(io::Cursor::new(vec![0; 23])).is_err());
    }
}
