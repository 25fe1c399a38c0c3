//! The root file system of the emulated machine: busybox, weft, weft-bench, the kernel modules of
//! the contenders, and Open vSwitch if it is a contender.

use std::fs;
use std::path::Path;

use initramfs::Archive;

use super::{Programs, Wire};
use crate::lab::{Contender, Datapath, KernelTunnel, OvsTunnel, StatefulSwitch};
use crate::{Error, Result};

/// The init script. It prepares the machine, runs the measurement, and reboots, which ends the
/// emulator.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs run /run
for module in $(/bin/busybox cat /lib/modules); do /bin/busybox insmod /lib/$module.ko; done
/bin/busybox ip link set lo up
export PATH=/usr/sbin:/usr/bin:/bin
/bin/busybox stty -F /dev/ttyS1 raw -echo
/bin/weft-bench inside $(/bin/busybox cat /measure) >/dev/ttyS1 2>&1
echo \"weft-exact-end $?\" >/dev/ttyS1
/bin/busybox reboot -f
";

/// The kernel modules that every measurement needs.
const BASE_MODULES: &[&str] = &["veth", "tun"];
/// The programs of Open vSwitch, and its database schema.
const OVS_FILES: &[&str] = &[
    "/usr/sbin/ovs-vswitchd",
    "/usr/sbin/ovsdb-server",
    "/usr/bin/ovsdb-tool",
    "/usr/bin/ovs-vsctl",
    "/usr/bin/ovs-ofctl",
    "/usr/share/openvswitch/vswitch.ovsschema",
];

/// The program of nftables.
const NFT: &str = "/usr/sbin/nft";

/// The modules that `contender` needs on `wire`, without their dependencies.
fn modules(contender: Contender, wire: Wire) -> Vec<&'static str> {
    let mut modules = BASE_MODULES.to_vec();
    modules.extend(wire.modules());
    modules.extend(match contender {
        Contender::Direct => &[][..],
        Contender::LinuxBridge => &["bridge"],
        Contender::Kernel(KernelTunnel::Vxlan) => &["bridge", "vxlan"],
        Contender::Kernel(KernelTunnel::Geneve) => &["bridge", "geneve"],
        Contender::Kernel(KernelTunnel::Gre) => &["bridge", "ip_gre"],
        Contender::Kernel(KernelTunnel::QinQ) => &["bridge", "8021q"],
        Contender::Ovs(Datapath::User, _) => &[],
        Contender::Ovs(Datapath::Kernel, tunnel)
        | Contender::Stateful(StatefulSwitch::Ovs(tunnel), _) => match tunnel {
            OvsTunnel::Vxlan => &["nf_conntrack_netlink", "vport-vxlan"],
            OvsTunnel::Geneve => &["nf_conntrack_netlink", "vport-geneve"],
            OvsTunnel::Gre => &["nf_conntrack_netlink", "vport-gre"],
            OvsTunnel::Bridge | OvsTunnel::QinQ => &["nf_conntrack_netlink", "openvswitch"],
        },
        Contender::Weft(Datapath::User, _) | Contender::WeftBridge(Datapath::User) => &[],
        Contender::Weft(Datapath::Kernel, _)
        | Contender::WeftBridge(Datapath::Kernel)
        | Contender::WeftVeth(_)
        | Contender::Stateful(StatefulSwitch::Weft(_), _) => {
            &["sch_ingress", "cls_bpf", "bridge", "vxlan"]
        }
        Contender::Stateful(StatefulSwitch::Bridge, _) => {
            &["bridge", "nf_conntrack_bridge", "nft_ct"]
        }
    });
    modules
}

/// Builds the root file system for `contenders`, with modules from the directory `kernel`.
/// `arguments` are those of `weft-bench inside`.
///
/// # Errors
/// A program or a module is missing.
pub(super) fn root_file_system(
    contenders: &[Contender],
    wire: Wire,
    programs: &Programs,
    kernel: &Path,
    arguments: &str,
) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "lib", "proc", "run", "sys", "tmp", "etc"] {
        archive.directory(directory);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("measure", arguments.as_bytes());
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    let busybox = busybox.into_iter().find(|path| path.exists()).ok_or_else(|| Error::Missing {
        what: "the emulated machine needs busybox".into(),
        how: "install Debian's package busybox-static".into(),
    })?;
    archive.file("bin/busybox", &read(busybox)?);
    program(&mut archive, "bin/weft", &programs.weft)?;
    program(&mut archive, "bin/weft-bench", &programs.weft_bench)?;
    if contenders.iter().any(|contender| contender.is_ovs()) {
        for path in OVS_FILES {
            if path.ends_with("schema") {
                archive.file(path, &read(Path::new(path))?);
            } else {
                program(&mut archive, path, Path::new(path))?;
            }
        }
    }
    if contenders.iter().any(|of| matches!(of, Contender::Stateful(StatefulSwitch::Bridge, _))) {
        program(&mut archive, NFT, Path::new(NFT))?;
    }
    let mut loaded = Vec::new();
    for name in contenders.iter().flat_map(|&contender| modules(contender, wire)) {
        add_module(&mut archive, kernel, name, &mut loaded)?;
    }
    // The init script loads the modules in this order: dependencies come first.
    archive.file("lib/modules", loaded.join("\n").as_bytes());
    archive.end().map_err(|name| Error::Other(format!("{name} is too long for an archive")))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}

/// Adds a program with its shared libraries.
fn program(archive: &mut Archive, name: &str, file: &Path) -> Result<()> {
    let what = format!("put {} into the emulated machine", file.display());
    archive.program(name, file).map_err(Error::io(what))
}

/// Adds a module, and before it all its dependencies.
fn add_module(
    archive: &mut Archive,
    kernel: &Path,
    name: &str,
    loaded: &mut Vec<String>,
) -> Result<()> {
    if loaded.iter().any(|other| other == name) {
        return Ok(());
    }
    let path = kernel.join(format!("{name}.ko"));
    let bytes = fs::read(&path).map_err(|_| Error::Missing {
        what: format!("the kernel's module {name} is not in {}", kernel.display()),
        how: format!("get it with scripts/fetch-guest-kernel.sh {}", kernel.display()),
    })?;
    for needed in needed_by(&bytes) {
        add_module(archive, kernel, &needed, loaded)?;
    }
    archive.module(&format!("lib/{name}.ko"), &bytes);
    loaded.push(name.to_owned());
    Ok(())
}

/// The dependencies of a module: `depends=a,b` among the strings of its section `.modinfo`.
/// libcrc32c also needs crc32c_generic: it requests that algorithm by name when it is loaded, and
/// the machine has no modprobe that could load it then.
fn needed_by(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let rest = module.get(at + KEY.len()..).unwrap_or_default();
    let text = rest.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).replace("libcrc32c", "crc32c_generic,libcrc32c");
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_a_module() {
        let needs = |bytes: &[u8]| needed_by(bytes);
        assert_eq!(needs(b"x\0depends=llc,stp\0name=bridge\0"), ["llc", "stp"]);
        assert_eq!(needs(b"\0depends=libcrc32c\0"), ["crc32c_generic", "libcrc32c"]);
        assert!(needs(b"\0depends=\0").is_empty() && needs(b"nothing").is_empty());
    }
}
