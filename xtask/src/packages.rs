//! The Debian packages that the tasks need. `scripts/install-packages.sh` installs what is missing.

use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// The linker that cargo calls, and the C library it links; the compiler of `bpf/`, and what the
/// library that loads its programs is built with.
pub const BUILD: [&str; 7] =
    ["gcc", "libc6-dev", "clang-19", "libelf-dev", "make", "pkg-config", "zlib1g-dev"];

/// What the tests run against: dissectors, an independent author of frames, live peers, virtual
/// machines, a browser for reports, a scraper of metrics.
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

/// Where the tests look for the kernel of their virtual machines.
pub const GUEST_KERNEL: &str = "target/guest-kernel";

/// What compiles for arm64, and runs what was compiled.
pub const ARM64: [&str; 5] = [
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "libelf-dev:arm64",
    "qemu-user",
    "zlib1g-dev:arm64",
];

/// What assembles Debian packages, and checks them.
pub const DEB: [&str; 2] = ["debhelper", "lintian"];

/// What makes the machine in which packages are installed, besides QEMU.
pub const DEB_TEST: [&str; 3] = ["e2fsprogs", "mmdebstrap", "qemu-system-x86"];

/// LXD, its OVN, and what its containers are made of and talk to.
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

/// libvirt without the service that starts it, its OVN, and its machines.
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

/// What makes the script of OVN's system tests, and the programs that they call.
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

/// What Open vSwitch's tests of connection tracking call besides: an FTP client and an FTP server.
pub const OVS_TRAFFIC_TESTS: [&str; 2] = ["lftp", "python3-pyftpdlib"];

/// libFuzzer is C++.
pub const FUZZ: [&str; 1] = ["g++"];

/// Everything that any task needs.
pub fn all() -> Vec<&'static str> {
    [&BUILD[..], &TEST, &FUZZ, &DEB].concat()
}

/// Installs those of `packages` that are missing, and says which.
///
/// # Errors
/// [`run::Failed`] with exit code 2 when they cannot be installed; the script has said why.
pub fn ensure(packages: &[&str]) -> Result<()> {
    let mut command = Command::new("scripts/install-packages.sh");
    command.args(packages);
    let status = command.status().context("cannot start scripts/install-packages.sh")?;
    run::succeeded(&command, status)
}

/// Fetches the kernel of the tests' virtual machines if it is missing. Where that fails, which the
/// script has told, the tests that need it are skipped.
///
/// # Errors
/// When the script cannot be started.
pub fn fetch_guest_kernel() -> Result<()> {
    let mut command = Command::new("scripts/fetch-guest-kernel.sh");
    command.arg(GUEST_KERNEL).status().context("cannot start scripts/fetch-guest-kernel.sh")?;
    Ok(())
}
