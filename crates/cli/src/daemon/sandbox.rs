//! The privileges of the daemon. Lists those that it needs, with reasons, and drops all others
//! before the first thread that handles packets starts. docs/security.md explains each.

use super::provider::PreparedProvider;
use anyhow::{Context, Result, bail};
use datapath::config::{Config, DeviceConfig};
use datapath::stats::PrivilegeStats;
use netdev::capability::{self, Capability};
use netdev::sandbox::{Entered, FileAccess, FileLimit, Privileges, Sandbox, SystemCalls};
use std::path::Path;

/// The capabilities that a running switch needs, with reasons.
fn needed(config: &Config) -> Vec<(Capability, &'static str)> {
    let mut needed = vec![
        (Capability::CAP_NET_ADMIN, "devices and routes"),
        (Capability::CAP_NET_RAW, "packet sockets"),
    ];
    if enters_namespaces(config) {
        needed.push((Capability::CAP_SYS_ADMIN, "ports in network namespaces"));
    }
    needed
}

fn enters_namespaces(config: &Config) -> bool {
    let is_inside =
        |device: &DeviceConfig| matches!(device, DeviceConfig::Tap { guest: Some(_), .. });
    config.ports.iter().any(|port| is_inside(&port.device))
}

/// The capabilities of `needed` that this thread lacks, as text.
fn missing(needed: &[(Capability, &str)]) -> Option<String> {
    let lacks = |one: &Capability| capability::missing(&[*one]).is_some();
    list(needed.iter().filter(|(one, _)| lacks(one)))
}

/// Capabilities with reasons, as text; `None` for an empty list.
fn list<'a>(needed: impl Iterator<Item = &'a (Capability, &'a str)>) -> Option<String> {
    let texts: Vec<_> = needed.map(|(one, what)| format!("{one} ({what})")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Checks the capabilities before the start. Without this check, every port and socket would fail
/// to open, one by one.
///
/// # Errors
/// Some capabilities are missing. The error lists them and the remedy.
pub fn require_at_start(config: &Config, use_kernel: bool) -> Result<()> {
    let mut all = needed(config);
    let mut remedy = "run weft run as root, or grant them (AmbientCapabilities= in a systemd unit)";
    if use_kernel {
        let programs = datapath_bpf::missing_capabilities();
        if !programs.is_empty() && !enters_namespaces(config) {
            remedy = "run weft run as root, grant them (AmbientCapabilities= in a systemd unit), \
                      or choose --datapath user";
        }
        for one in programs {
            if !all.iter().any(|(other, _)| *other == one) {
                all.push((one, "BPF programs"));
            }
        }
    }
    match missing(&all) {
        Some(missing) => bail!("the switch of {} lacks {missing}: {remedy}", config.host),
        None => Ok(()),
    }
}

/// Checks the capabilities before a reload. The daemon may have dropped one that the new file
/// needs.
///
/// # Errors
/// Some capabilities are missing. The error lists them and the remedy. Nothing has changed.
pub fn require_for_reload(config: &Config) -> Result<()> {
    match missing(&needed(config)) {
        Some(missing) => bail!(
            "the switch of {} lacks {missing}, which it gave up at its start because its file did \
             not need it, and nothing was changed: restart weft run with this file",
            config.host
        ),
        None => Ok(()),
    }
}

/// The capabilities that the new configuration of a host needs and the old one does not, as text.
/// The daemon dropped them at its start.
pub fn further_needed(old: &Config, new: &Config) -> Option<String> {
    let before = needed(old);
    list(needed(new).iter().filter(|one| !before.contains(one)))
}

/// Permanently drops all privileges that the switch does not need. No thread that handles packets
/// or commands may run yet. `sockets` are the files of the daemon's sockets, `bridges` is the
/// directory in which it creates and removes sockets of bridges, and `attached` is the directory of
/// attached devices.
///
/// # Errors
/// The kernel rejects the sandbox.
pub fn enter(
    config: &Config,
    provider: &PreparedProvider,
    (sockets, bridges): (&[&Path], Option<&Path>),
    attached: &Path,
) -> Result<FileLimit> {
    let mut files = vec![
        // The directory of the TUN device: the file appears only when its kernel module is loaded.
        FileAccess::Write("/dev/net".into()),
        // The sysctls of network devices. Other sysctls of the host stay read-only.
        FileAccess::Write("/proc/sys/net".into()),
    ];
    if let Some([bpf_fs, folder]) = provider.pin_folders() {
        files.push(FileAccess::RemoveFolders(bpf_fs.to_owned()));
        files.push(FileAccess::Change(folder.to_owned()));
    }
    files.push(FileAccess::Change(attached.to_owned()));
    // The daemon removes its sockets when it stops.
    for socket in sockets {
        let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
        files.push(FileAccess::RemoveFiles(folder.unwrap_or(Path::new(".")).to_owned()));
    }
    files.extend(bridges.map(|folder| FileAccess::Sockets(folder.to_owned())));
    let sandbox = Sandbox {
        capabilities: needed(config).into_iter().map(|(one, _)| one).collect(),
        files,
        system_calls: SystemCalls {
            bpf: provider.is_kernel(),
            network_namespaces: enters_namespaces(config),
        },
    };
    let Entered { files, has_filter } = sandbox.enter().context("cannot give up privileges")?;
    if !has_filter {
        messages::log!(
            SECCOMP_MISSING,
            "the kernel has no seccomp filters: system calls are not limited"
        );
    }
    if files == FileLimit::None {
        messages::log!(
            LANDLOCK_MISSING,
            "Landlock is not enabled: the daemon may change all files of its user"
        );
    }
    Ok(files)
}

/// The privileges of this thread, which all threads of the daemon have.
pub fn stats(files: FileLimit) -> PrivilegeStats {
    // Fails only without /proc, and then the daemon would not have started.
    let Privileges { capabilities, no_new_privs, has_filter } =
        Privileges::of_this_thread().unwrap_or_default();
    let landlock = match files {
        FileLimit::Full => "on",
        FileLimit::Partial => "partial",
        FileLimit::None => "off",
    };
    let landlock = landlock.to_owned();
    PrivilegeStats { capabilities, no_new_privs, seccomp: has_filter, landlock }
}
