//! The Debian packages that the tasks need. `scripts/install-packages.sh` installs those that are
//! missing.

use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// Packages that compile weft: the linker and C library for cargo, the compiler of `bpf/`, and
/// tools that build libbpf.
pub const BUILD: [&str; 7] =
    ["gcc", "libc6-dev", "clang-19", "libelf-dev", "make", "pkg-config", "zlib1g-dev"];

/// Packages for the tests: dissectors, independent frame generators, peers (other implementations),
/// virtual machines, a browser for reports, a scraper of metrics.
pub const TEST: [&str; 22] = [
    "busybox-static",
    "chromium",
    "containernetworking-plugins",
    "ethtool",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "isc-dhcp-client",
    "iptables",
    "nftables",
    "openssl",
    "openvswitch-switch",
    "ovn-central",
    "ovn-host",
    "prometheus",
    "python3-jsonschema",
    "python3-scapy",
    "qemu-system-x86",
    "sockperf",
    "tcpdump",
    "tshark",
    "xz-utils",
];

/// The directory in which tests look for the kernel of their virtual machines.
pub const GUEST_KERNEL: &str = "target/guest-kernel";

/// Packages that compile for arm64, and run the compiled programs.
pub const ARM64: [&str; 5] = [
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "libelf-dev:arm64",
    "qemu-user",
    "zlib1g-dev:arm64",
];

/// Packages that assemble Debian packages and check them.
pub const DEB: [&str; 2] = ["debhelper", "lintian"];

/// Packages that create the machine in which packages are tested, including QEMU.
pub const DEB_TEST: [&str; 3] = ["e2fsprogs", "mmdebstrap", "qemu-system-x86"];

/// Packages for the LXD test: LXD, OVN, and programs in its containers and in the network outside.
pub const LXD_TEST: [&str; 9] = [
    "busybox-static",
    "ethtool",
    "iproute2",
    "lxd",
    "openvswitch-switch",
    "ovn-central",
    "ovn-host",
    "python3",
    "tcpdump",
];

/// Packages for the libvirt test: libvirt without its service, OVN, and programs of the machines.
pub const LIBVIRT_TEST: [&str; 12] = [
    "busybox-static",
    "iproute2",
    "iputils-ping",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "openvswitch-switch",
    "ovn-central",
    "procps",
    "python3",
    "qemu-system-x86",
    "xz-utils",
];

/// Packages for OVN's system tests: they generate the script of the tests, and contain programs
/// that it calls.
pub const OVN_SYSTEM_TESTS: [&str; 15] = [
    "autoconf",
    "curl",
    "ethtool",
    "iproute2",
    "iputils-ping",
    "ncat",
    "net-tools",
    "openvswitch-switch",
    "ovn-central",
    "ovn-host",
    "python3-openvswitch",
    "python3-scapy",
    "tcpdump",
    "wget",
    "xxd",
];

/// Additional packages for Open vSwitch's tests of connection tracking: an FTP client and an FTP
/// server.
pub const OVS_TRAFFIC_TESTS: [&str; 2] = ["lftp", "python3-pyftpdlib"];

/// The C++ compiler, which libFuzzer needs.
pub const FUZZ: [&str; 1] = ["g++"];

/// All packages that CI needs.
pub fn all() -> Vec<&'static str> {
    [&BUILD[..], &TEST, &FUZZ, &DEB].concat()
}

/// Installs those of `packages` that are missing, and prints their names.
///
/// # Errors
/// [`run::Failed`] with exit code 2 when they cannot be installed; the script has printed the
/// reason.
pub fn ensure(packages: &[&str]) -> Result<()> {
    let mut command = Command::new("scripts/install-packages.sh");
    command.args(packages);
    let status = command.status().context("cannot start scripts/install-packages.sh")?;
    run::succeeded(&command, status)
}

/// Downloads the kernel of the tests' virtual machines if it is missing. If this fails, the script
/// prints the reason, and the tests that need the kernel are skipped.
///
/// # Errors
/// When the script cannot be started.
pub fn fetch_guest_kernel() -> Result<()> {
    let mut command = Command::new("scripts/fetch-guest-kernel.sh");
    command.arg(GUEST_KERNEL).status().context("cannot start scripts/fetch-guest-kernel.sh")?;
    Ok(())
}
