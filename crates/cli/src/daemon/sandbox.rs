//! The privileges of the daemon: which ones it needs and for what, and how it gives up the others
//! before its first thread that handles packets starts. docs/security.md explains each.

use super::provider::PreparedProvider;
use anyhow::{Context, Result, bail};
use datapath::config::{Config, DeviceConfig};
use datapath::stats::PrivilegeStats;
use netdev::capability::{self, Capability};
use netdev::sandbox::{Entered, FileAccess, FileLimit, Privileges, Sandbox, SystemCalls};
use std::path::Path;

/// The capabilities that a switch needs as long as it runs, and what for.
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

/// Those of `needed` that this thread lacks, as text.
fn missing(needed: &[(Capability, &str)]) -> Option<String> {
    let lacks = |one: &Capability| capability::missing(&[*one]).is_some();
    list(needed.iter().filter(|(one, _)| lacks(one)))
}

/// Capabilities and what for, as text; `None` without any.
fn list<'a>(needed: impl Iterator<Item = &'a (Capability, &'a str)>) -> Option<String> {
    let texts: Vec<_> = needed.map(|(one, what)| format!("{one} ({what})")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Checked before the start: otherwise every port and socket would fail to open, one by one.
///
/// # Errors
/// All capabilities that are missing, and what to do.
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

/// Checked before a reload: what the new file needs may be given up since the start.
///
/// # Errors
/// All capabilities that are missing, and what to do. Nothing has changed.
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
/// The daemon gave them up at its start.
pub fn further_needed(old: &Config, new: &Config) -> Option<String> {
    let before = needed(old);
    list(needed(new).iter().filter(|one| !before.contains(one)))
}

/// Gives up all privileges that the switch does not need, for good. No thread that handles packets
/// or commands may run yet. `sockets` are the files of its sockets, `bridges` is the directory in
/// which sockets of bridges come and go, and `attached` is the directory of attached devices.
///
/// # Errors
/// The kernel refuses.
pub fn enter(
    config: &Config,
    provider: &PreparedProvider,
    (sockets, bridges): (&[&Path], Option<&Path>),
    attached: &Path,
) -> Result<FileLimit> {
    let mut files = vec![
        // The TUN device, which appears with its module.
        FileAccess::Write("/dev/net".into()),
        // Settings of devices; those of the host are elsewhere in /proc/sys.
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
    // Without /proc, the daemon would not have started.
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
