//! The messages that the daemon logs. Each has a stable identifier for alerts and scripts. The text
//! of a message may change, its identifier does not. `docs/log-messages.md` is generated from this
//! table.
//!
//! [`log!`] is the only way to log. Other crates of the daemon must not depend on `tracing`.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub use tracing;
pub use tracing::Level;

/// The definition of a log message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its identifier: lower-case words with hyphens between them. It is never reused for another
    /// meaning.
    pub id: &'static str,
    /// Its level.
    pub level: Level,
    /// A description of the event, in one or more sentences.
    pub meaning: &'static str,
    /// The action for the operator; empty if none is needed.
    pub action: &'static str,
}

/// Defines the constants of all messages, and [`ALL`].
macro_rules! messages {
    ($($name:ident: $level:ident, $id:literal, $meaning:literal, $action:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $name: Message =
                Message { id: $id, level: Level::$level, meaning: $meaning, action: $action };
        )*

        /// All messages, by the part of weft that logs them.
        pub const ALL: &[Message] = &[$($name),*];
    };
}

messages! {
    // The daemon.
    TOOL_SOCKET_MISSING: WARN, "tool-socket-missing",
        "A control socket for ovs-appctl or ovn-appctl cannot be opened. Forwarding does not \
         depend on it.",
        "Remove what is at its path, or let the daemon write to the directory, and restart.";
    TOOL_SOCKET_ERROR: DEBUG, "tool-socket-error",
        "A connection to a control socket for ovs-appctl cannot be accepted.",
        "";
    TOOL_CLIENT_ERROR: DEBUG, "tool-client-error",
        "A client of a control socket for ovs-appctl has disconnected, or sent an invalid request.",
        "";
    MANAGEMENT_SOCKET_MISSING: WARN, "management-socket-missing",
        "The socket at which ovs-ofctl reads the flows of a bridge cannot be opened. Forwarding \
         does not depend on it.",
        "Remove what is at its path, or let the daemon write to the directory, and restart.";
    MANAGEMENT_SOCKET_ERROR: DEBUG, "management-socket-error",
        "A client such as ovs-ofctl has disconnected, or sent an invalid request.",
        "";
    CONTROL_SOCKET_ERROR: DEBUG, "control-socket-error",
        "A connection to the control socket cannot be accepted.",
        "";
    CONTROL_CLIENT_ERROR: DEBUG, "control-client-error",
        "A client of the control socket has disconnected, or does not read.",
        "";
    CONTROL_THREAD_FAILED: WARN, "control-thread-failed",
        "No thread can be started for a client of the control socket. The client is disconnected.",
        "Raise the limit of threads (TasksMax of the unit).";
    DEVICE_ATTACHED: INFO, "device-attached",
        "An interface was attached to a port of a pool.",
        "";
    DEVICE_DETACHED: INFO, "device-detached",
        "Interfaces were detached from ports of pools.",
        "";
    ATTACHED_FILE_UNREADABLE: WARN, "attached-file-unreadable",
        "The file with the attached interface of a port of a pool cannot be read.",
        "Attach the interface again with weft port add.";
    OVN_SETTINGS_AWAITED: INFO, "ovn-settings-awaited",
        "The local database lacks settings of this host. Platforms often add bridges first.",
        "";
    OVN_SETTINGS_MISSING: WARN, "ovn-settings-missing",
        "The local database has lacked settings of this host for 30 seconds.",
        "Set what the message names with ovs-vsctl; the daemon waits for it.";
    OVN_READING: INFO, "ovn-reading",
        "The daemon begins to read the southbound database.",
        "";
    OVN_THREAD_PANICKED: ERROR, "ovn-thread-panicked",
        "The thread that follows OVN has ended. Forwarding continues with the last network.",
        "Restart the daemon, and report the fault.";
    OVN_NETWORK_HELD: WARN, "ovn-network-held",
        "The southbound database has come back without any network. The switch keeps the one \
         that it has for up to five minutes.",
        "Find out whether the database was emptied on purpose.";
    OVN_WARNING: WARN, "ovn-warning",
        "A part of the network of OVN cannot be executed, or a setting is ignored.",
        "Read the text of the message; docs/join-an-ovn.md lists what is missing.";
    OVN_SETTINGS_CHANGED: WARN, "ovn-settings-changed",
        "A setting has changed that needs a restart. The daemon continues with the old one.",
        "Restart weft run.";
    OVN_LOCK_TAKEN: WARN, "ovn-lock-taken",
        "Another process, such as ovs-vswitchd, has the lock of the local database.",
        "Stop that process.";
    OVN_INSTALLED: DEBUG, "ovn-installed",
        "A network of OVN is active.",
        "";
    OVN_INSTALL_FAILED: WARN, "ovn-install-failed",
        "A network of OVN cannot be activated. The old one stays active, and the daemon tries \
         again.",
        "Correct what the message names.";
    OVN_CHASSIS_LEFT: WARN, "ovn-chassis-left",
        "The southbound database still has this host after the daemon has ended.",
        "Remove it with ovn-sbctl chassis-del.";
    OVN_DATABASE_CONNECTED: INFO, "ovn-database-connected",
        "The daemon is connected to a database.",
        "";
    OVN_DATABASE_LOST: WARN, "ovn-database-lost",
        "The connection to a database was lost, or cannot be made. Forwarding continues, and \
         the daemon tries again.",
        "Check the database and the network path to it.";
    OVN_DATABASE_UNCONDITIONAL: WARN, "ovn-database-unconditional",
        "A database does not send a part of its rows. The daemon reads all of them, which \
         takes memory and time.",
        "Update the database server.";
    OVN_WRITE_FAILED: WARN, "ovn-write-failed",
        "A database has refused a change by this host. The daemon tries again.",
        "Correct what the message names.";
    OVN_WRITE_RETRIED: DEBUG, "ovn-write-retried",
        "A change by this host conflicted with another change of the database. The daemon tries \
         again.",
        "";
    USER_DATAPATH_STARTED: INFO, "user-datapath-started",
        "The user datapath forwards all packets.",
        "If the kernel datapath is expected, read the reason, and run weft doctor.";
    NO_DATAPATH_STARTED: WARN, "no-datapath-started",
        "With --datapath none, the daemon follows OVN but handles no packets.",
        "If this host has guests, start weft without --datapath none.";
    KERNEL_DATAPATH_STARTED: INFO, "kernel-datapath-started",
        "The kernel datapath forwards.",
        "";
    IPSEC_BYPASSED: WARN, "ipsec-bypassed",
        "The host has IPsec policies, but the kernel datapath sends and receives in clear text.",
        "If tunnels are to be encrypted, run weft with --datapath user and VXLAN or Geneve.";
    OLD_STATE_REMOVED: INFO, "old-state-removed",
        "Pinned state of an earlier daemon was removed, because the user datapath does not \
         use it.",
        "";
    OLD_STATE_UNKNOWN: WARN, "old-state-unknown",
        "The daemon cannot find out whether an earlier daemon left pinned state.",
        "If packets are handled twice, run weft stop --purge and start again.";
    OLD_STATE_LEFT: WARN, "old-state-left",
        "Some pinned state of an earlier daemon cannot be removed.",
        "Run weft stop --purge.";
    RELOADED: INFO, "reloaded",
        "A new network file is active.",
        "";
    SECCOMP_MISSING: WARN, "seccomp-missing",
        "The kernel has no seccomp filters, so system calls of the daemon are not limited.",
        "Use a kernel with CONFIG_SECCOMP_FILTER.";
    LANDLOCK_MISSING: WARN, "landlock-missing",
        "Landlock is not enabled, so the daemon may change all files of its user.",
        "Boot a kernel with Landlock (lsm=landlock).";
    SAVED_CONNECTIONS_UNREADABLE: WARN, "saved-connections-unreadable",
        "The connections that an earlier daemon has saved cannot be read.",
        "See Operating weft, Restart and upgrade.";
    CONNECTIONS_NOT_SAVED: WARN, "connections-not-saved",
        "The next daemon will not know the connections of this one.",
        "Make room or permissions for the file that the message names, and restart.";
    SAVED_CONNECTIONS_LEFT: WARN, "saved-connections-left",
        "The file of saved connections cannot be removed.",
        "Remove it, unless the next daemon is to continue them.";
    CONNECTIONS_RESTORED: INFO, "connections-restored",
        "Connections of the previous daemon were restored.",
        "";
    CONNECTIONS_LOST: WARN, "connections-lost",
        "Connections of the previous daemon cannot be restored.",
        "See Operating weft, Restart and upgrade, for each reason.";
    LOG_LOST: WARN, "log-lost",
        "Standard error was not read in time, so messages are missing here.",
        "Check the program that reads standard error.";
    METRICS_SOCKET_ERROR: DEBUG, "metrics-socket-error",
        "A connection to the socket of metrics cannot be accepted.",
        "";
    METRICS_CLIENT_ERROR: DEBUG, "metrics-client-error",
        "A client of metrics has disconnected, or sent an invalid request.",
        "";
    METRICS_THREAD_FAILED: WARN, "metrics-thread-failed",
        "No thread can be started for a client of metrics. The client is disconnected.",
        "Raise the limit of threads (TasksMax of the unit).";
    OPEN_FILES_UNKNOWN: WARN, "open-files-unknown",
        "The limit of open files cannot be raised. The present one may suffice.",
        "Raise it (LimitNOFILE of the unit) if ports stay down.";
    STARTED: INFO, "started",
        "The daemon forwards and answers.",
        "";
    STOPPED_FORWARDING: INFO, "stopped-forwarding",
        "The daemon has stopped. The kernel keeps forwarding cached flows.",
        "weft stop --purge ends that.";
    STOPPED_UNCERTAIN: WARN, "stopped-uncertain",
        "The daemon has stopped. Cached flows end if their BPF file system does.",
        "Start weft in the mount namespace of process 1.";
    STOPPED: INFO, "stopped",
        "The daemon has stopped, and nothing is forwarded.",
        "";
    METRICS_SERVED: INFO, "metrics-served",
        "Metrics are served at an address.",
        "";
    RELOAD_FAILED: ERROR, "reload-failed",
        "A reload after SIGHUP has failed. The old network stays active.",
        "Correct the file that the message names, and reload.";
    SERVICE_MANAGER_UNREACHABLE: WARN, "service-manager-unreachable",
        "The service manager did not take a message.",
        "Check systemd if it repeats.";
    WATCHDOG_NOT_SERVED: ERROR, "watchdog-not-served",
        "A thread hangs, so the daemon does not serve the watchdog. systemd will restart it.",
        "Report the fault.";
    LOG_LIMITED: WARN, "log-limited",
        "Messages with the same identifier came so often that some were left out.",
        "Read those that were logged, and their number.";
    FAILED: ERROR, "failed",
        "The daemon could not start, or has ended by an error.",
        "Correct what the message names.";
    PANICKED: ERROR, "panicked",
        "The daemon has a fault and ends. The kernel keeps forwarding cached flows.",
        "Report it, with the lines that follow.";

    // The user datapath, ports and tunnels.
    PUNT_TAP_NOT_MADE: WARN, "punt-tap-not-made",
        "The TAP for punted packets cannot be created. The daemon tries again; until then \
         punted packets are lost.",
        "Correct what the message names.";
    TAG_PROGRAM_LEFT: DEBUG, "tag-program-left",
        "The reception of tagged frames cannot be ended. The device may have been removed.",
        "";
    VXLAN_GRO_OFF: DEBUG, "vxlan-gro-off",
        "The kernel does not merge segments inside VXLAN, so TCP over VXLAN is slower.",
        "";
    PATH_MTU_OFF: WARN, "path-mtu-off",
        "ICMP errors cannot be received, so path MTUs are not discovered.",
        "Correct what the message names, or set the MTUs by hand.";
    UPLINK_NOT_READ: DEBUG, "uplink-not-read",
        "The state of the uplink cannot be read.",
        "";
    ACL_RECORDS_LEFT_OUT: WARN, "acl-records-left-out",
        "Records of ACLs with log were over their rate limit and left out.",
        "Log fewer packets.";
    LINK_NOT_READ: WARN, "link-not-read",
        "The state of an interface cannot be read.",
        "Report it if it repeats.";
    PUNT_TAP_GONE: WARN, "punt-tap-gone",
        "The TAP for punted packets was removed. The daemon creates it again.",
        "Do not remove this device.";
    VXLAN_GRO_LEFT: WARN, "vxlan-gro-left",
        "The device for GRO inside VXLAN cannot be removed.",
        "Remove it with ip link del.";
    DEVICE_NOT_CLOSED: DEBUG, "device-not-closed",
        "A device of a port cannot be released. It may have been removed.",
        "";
    GUEST_ADDRESS_NOT_SET: WARN, "guest-address-not-set",
        "An IPv6 address of a guest in a network namespace cannot be set.",
        "Enable IPv6 in the namespace, or remove the address from the network file.";
    VETH_REMOVED: INFO, "veth-removed",
        "The veth pair of a former port was removed.",
        "";
    HEADROOM_NOT_SET: DEBUG, "headroom-not-set",
        "Frames of guests have no headroom for outer headers, so encapsulation is slower.",
        "";
    ACL_RECORD: INFO, "acl-record",
        "A packet has matched an ACL with log.",
        "";
    PATH_MTU_LOWERED: INFO, "path-mtu-lowered",
        "A router has reported a path MTU, which the daemon uses.",
        "";
    PATH_MTU_PROBED: WARN, "path-mtu-probed",
        "Long packets to a host were lost without an ICMP error. The daemon has measured the path \
         MTU with probes, and uses it.",
        "Let routers of the underlay send ICMP errors, or set underlay_mtu to what the path \
         carries.";
    PATH_MTU_RAISED: INFO, "path-mtu-raised",
        "Probes have found that a path carries its configured MTU again.",
        "";
    PATH_MTU_IGNORED: WARN, "path-mtu-ignored",
        "A report of a path MTU was rejected as implausible.",
        "See Operating weft, Path MTU.";
    PORT_NOT_OPENED: WARN, "port-not-opened",
        "The device of a port cannot be opened. The daemon tries again.",
        "Create the device, or correct the network file.";
    PORT_VANISHED: WARN, "port-vanished",
        "The device of a port was removed. The daemon waits for it.",
        "Create it again, or remove the port from the network file.";
    PORT_MTU_DIFFERS: WARN, "port-mtu-differs",
        "The MTU of a device differs from that of its logical switch, so long packets will be \
         lost.",
        "Set both ends of the device to the MTU of the switch.";
    BACKEND_OFFLINE: WARN, "backend-offline",
        "A backend of a load balancer has failed its checks. It gets no new connections.",
        "Check the service; the message says what failed.";
    BACKEND_ONLINE: INFO, "backend-online",
        "A backend of a load balancer passes its checks. It gets new connections.",
        "";
    BACKENDS_FURTHER: WARN, "backends-further",
        "Many backends have changed their status at once. This is the number of those that have \
         no message of their own.",
        "weft show lists all backends.";
    HEALTH_CHECKS_LIMITED: WARN, "health-checks-limited",
        "Load balancers have more backends with health checks than one host checks. The others are \
         not checked, and get connections whatever their health is.",
        "Divide the backends among several hosts, or remove the checks of some.";
    BACKENDS_FLUSHED: INFO, "backends-flushed",
        "Backends were removed from load balancers of OVN that end the connections to such \
         backends (`ct_flush`).",
        "";
    HEALTH_NOT_APPLIED: WARN, "health-not-applied",
        "A backend has changed its status, and the network without or with it cannot be \
         activated. The daemon tries again.",
        "Correct what the message names.";
    PORT_UP: INFO, "port-up",
        "A port forwards.",
        "";
    PORT_WAITS: INFO, "port-waits",
        "The link of a new port is not up yet, for example because the other end of a veth pair is \
         down.",
        "";
    PORT_DOWN: WARN, "port-down",
        "The link of a port is down.",
        "Check the guest.";
    NEIGHBOURS_NOT_READ: WARN, "neighbours-not-read",
        "Neighbours cannot be read, so tunnels may find no next hop.",
        "Report it if it repeats.";
    ROUTES_NOT_READ: WARN, "routes-not-read",
        "A route, or notifications about routes and neighbours, cannot be read. The daemon keeps what \
         it knows, and reads it again.",
        "Report it if it repeats.";
    REVERSE_PATH_FAILS: WARN, "reverse-path-fails",
        "The route to an end point does not lead over the uplink, so authenticate = reverse-path \
         drops its packets.",
        "Correct the routes to the addresses of the hosts, or the uplink in the network file.";
    SOURCE_PORTS_TAKEN: WARN, "source-ports-taken",
        "Other programs use UDP source ports of tunnels.",
        "Free these ports and restart.";
    UPLINK_CHANGED: WARN, "uplink-changed",
        "The uplink went down, was removed, or is up again.",
        "Check the network card and its cable.";
    UPLINK_MTU_TOO_LOW: WARN, "uplink-mtu-too-low",
        "The MTU of the uplink is too low for the longest packets.",
        "Raise it, or lower underlay_mtu in the network file.";
    PUNT_TAP_NOT_POLLED: ERROR, "punt-tap-not-polled",
        "Punted packets cannot be read and are lost.",
        "Restart the daemon, and report the fault.";
    UPLINK_NOT_POLLED: ERROR, "uplink-not-polled",
        "Tagged frames of the uplink cannot be read and are lost.",
        "Restart the daemon, and report the fault.";
    TUNNEL_NOT_POLLED: ERROR, "tunnel-not-polled",
        "Packets of a tunnel cannot be read and are lost.",
        "Restart the daemon, and report the fault.";

    // The kernel datapath.
    PROGRAM_ATTACHED: INFO, "program-attached",
        "An eBPF program was attached to a device.",
        "";
    PROGRAM_BEHIND_OTHERS: WARN, "program-behind-others",
        "Another program runs before that of weft and may consume its packets.",
        "Detach the other program, or check that it passes packets on.";
    PROGRAM_NOT_ATTACHED: ERROR, "program-not-attached",
        "An eBPF program cannot be attached to a device. The daemon tries again.",
        "Correct what the message names; bpftool net shows what is attached.";
    LINK_NOT_PINNED: WARN, "link-not-pinned",
        "An attached program cannot be pinned, so it ends with the process.",
        "See Operating weft, Restart and upgrade.";
    QDISC_NOT_RECORDED: DEBUG, "qdisc-not-recorded",
        "A clsact qdisc that the daemon has added will not be removed.",
        "";
    FOREIGN_PROGRAM_DETACHED: WARN, "foreign-program-detached",
        "A program of another weft was detached from a device.",
        "Run weft stop --purge --bpf-fs for what is left of the other one.";
    FOREIGN_PROGRAM_LEFT: ERROR, "foreign-program-left",
        "A program of another weft cannot be detached, and consumes packets.",
        "Detach it with tc or bpftool.";
    PROGRAM_NAME_UNKNOWN: DEBUG, "program-name-unknown",
        "The name of an attached program cannot be read.",
        "";
    LIBBPF_DETAIL: DEBUG, "libbpf-detail",
        "libbpf reports an error that weft expects.",
        "";
    LIBBPF_WARNING: WARN, "libbpf-warning",
        "libbpf reports an error.",
        "Read it with the message that follows.";
    PROGRAM_NOT_DETACHED: DEBUG, "program-not-detached",
        "A program cannot be detached. Its device may have been removed.",
        "";
    ENDPOINT_CLASSES_FULL: WARN, "endpoint-classes-full",
        "The eBPF programs have no room for the settings of an end point. The user datapath \
         serves it.",
        "Use fewer different tunnel settings and local addresses.";
    ENDPOINT_CHAINS_FULL: WARN, "endpoint-chains-full",
        "The eBPF programs cannot find some end points. The user datapath decapsulates what \
         they send.",
        "Report it with the number of end points.";
    OLD_PINS_REMOVED: INFO, "old-pins-removed",
        "Pinned state of a deleted network namespace was removed.",
        "";
    OLD_PINS_LEFT: DEBUG, "old-pins-left",
        "Pinned state of a deleted network namespace cannot be removed.",
        "";
    PIN_FOLDER_LEFT: DEBUG, "pin-folder-left",
        "The directory of pinned state cannot be removed.",
        "";
    PORT_SLOT_TAKEN: ERROR, "port-slot-taken",
        "The eBPF programs have no room for a port. The port stays without them.",
        "Create the interface of the port again, so that it gets another index.";
    PINNED_MAPS_UNREADABLE: WARN, "pinned-maps-unreadable",
        "Pinned maps of an earlier daemon cannot be read, and their megaflows are lost.",
        "Packets take the slow path once; nothing else is lost.";
    OLD_DEVICE_LEFT: DEBUG, "old-device-left",
        "A device of an earlier daemon cannot be removed. It may not exist any more.",
        "";
    PINNING_IMPOSSIBLE: WARN, "pinning-impossible",
        "Programs cannot be pinned, so cached flows end with the process.",
        "See Operating weft, Restart and upgrade.";
    PINS_MAY_END: WARN, "pins-may-end",
        "Process 1 does not have the BPF file system mounted, so cached flows may end with \
         the process.",
        "Start weft in the mount namespace of process 1.";
    PINS_LEFT: WARN, "pins-left",
        "Pinned state cannot be removed.",
        "Run weft stop --purge.";
    MEGAFLOWS_NOT_ADDED: ERROR, "megaflows-not-added",
        "Megaflows cannot be added to the BPF maps. The user datapath takes their packets.",
        "Raise --megaflows if a map is full; otherwise correct what the message names.";
    MAP_MAINTENANCE_FAILED: ERROR, "map-maintenance-failed",
        "A BPF map cannot be read or cleaned.",
        "Report it if it repeats.";
    PINNED_COUNT_NOT_UPDATED: ERROR, "pinned-count-not-updated",
        "The pinned number of megaflows is not up to date.",
        "Report it if it repeats.";
    MEGAFLOWS_NOT_CONFIRMED: ERROR, "megaflows-not-confirmed",
        "Megaflows cannot be confirmed in the BPF maps. The user datapath takes their \
         packets.",
        "Report it if it repeats.";
    STATE_NOT_PINNED: WARN, "state-not-pinned",
        "Programs cannot be pinned, so the next daemon cannot adopt cached flows.",
        "See Operating weft, Restart and upgrade.";
    MEGAFLOWS_ADOPTED: INFO, "megaflows-adopted",
        "The megaflows of a previous daemon were adopted.",
        "";
    MEGAFLOWS_OUTDATED: WARN, "megaflows-outdated",
        "Megaflows of another version of weft are lost. Their next packets take the slow \
         path.",
        "";
    FUSED_MEGAFLOW_NOT_ADDED: ERROR, "fused-megaflow-not-added",
        "The megaflow of a tracked connection cannot be added to the BPF maps. The user \
         datapath takes its packets.",
        "Raise --megaflows if a map is full.";
    MAP_NOT_UPDATED: ERROR, "map-not-updated",
        "A BPF map cannot be updated. The user datapath takes the packets that need it.",
        "Correct what the message names; report it if it repeats.";

    // The switch.
    WRONG_MEGAFLOW: ERROR, "wrong-megaflow",
        "The self-check has found and deleted a wrong megaflow.",
        "Report it, with this line: it is a fault of weft, of the kernel or of the memory.";
    SWITCH_THREAD_LATE: WARN, "switch-thread-late",
        "A thread of the switch did not stop in time.",
        "Report it.";
    SWITCH_THREAD_PANICKED: ERROR, "switch-thread-panicked",
        "A thread of the switch has ended by a fault.",
        "Report it.";
    REVALIDATION_FAILED: WARN, "revalidation-failed",
        "The datapath did not answer the revalidator. It tries again.",
        "Report it if it repeats.";

    // Requests to the kernel.
    NETWORK_CHANGE_UNREADABLE: WARN, "network-change-unreadable",
        "A notification of the kernel about the network cannot be read.",
        "Report it with the version of the kernel.";
    NAMESPACE_LEFT: WARN, "namespace-left",
        "A network namespace cannot be removed.",
        "Remove it with ip netns del.";
    NETLINK_MESSAGE_SKIPPED: WARN, "netlink-message-skipped",
        "A message of the kernel cannot be read.",
        "Report it with the version of the kernel.";
    KERNEL_WARNING: DEBUG, "kernel-warning",
        "The kernel has returned a warning about a request that succeeded.",
        "";
    SOCKET_OPTION_MISSING: DEBUG, "socket-option-missing",
        "The kernel lacks an option of netlink sockets.",
        "";
}

/// Logs a message. The arguments are the name of its constant, then fields and a text as in
/// `tracing::event!`.
#[macro_export]
macro_rules! log {
    ($message:ident, target: $target:literal, $($rest:tt)+) => {
        $crate::tracing::event!(
            target: $target, $crate::$message.level, id = $crate::$message.id, $($rest)+
        )
    };
    ($message:ident, $($rest:tt)+) => {
        $crate::tracing::event!($crate::$message.level, id = $crate::$message.id, $($rest)+)
    };
}

/// True once a subscriber that receives the messages is installed.
pub fn is_logging() -> bool {
    tracing::dispatcher::has_been_set()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn identifiers_are_unique_words_and_texts_are_sentences() {
        let ids: BTreeSet<_> = ALL.iter().map(|message| message.id).collect();
        assert_eq!(ids.len(), ALL.len());
        for message in ALL {
            let id = message.id;
            let is_word = |word: &str| {
                !word.is_empty()
                    && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            };
            assert!(id.split('-').all(is_word), "{id}");
            assert!(message.meaning.ends_with('.'), "{id}");
            assert!(message.action.is_empty() || message.action.ends_with('.'), "{id}");
            // Every warning and error must tell the operator what to do.
            let is_fault = message.level <= Level::WARN;
            assert!(
                !is_fault || !message.action.is_empty() || message.id == "megaflows-outdated",
                "{id}: say what to do"
            );
        }
    }

    /// Crates that do not log: they print their own output, or are used only in tests and
    /// measurements.
    const OTHERS: [&str; 4] = ["bench", "doctor", "messages", "testkit"];

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn no_message_goes_out_without_an_identifier_and_each_is_used() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        for entry in fs::read_dir(crates).unwrap() {
            let folder = entry.unwrap().path();
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
            if OTHERS.contains(&name.as_str()) {
                continue;
            }
            // A crate that does not depend on `tracing` can log only with `log!`.
            let depends = manifest.lines().any(|line| line.starts_with("tracing."));
            assert!(!depends, "{name} must log by messages::log!, not by tracing");
            sources(&folder.join("src"), &mut files);
        }
        assert!(files.len() > 300);
        let text: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        assert!(!text.contains("tracing::event!"));
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let words: BTreeSet<&str> = text.split(|c: char| !is_name(c)).collect();
        for message in ALL {
            let name = message.id.to_uppercase().replace('-', "_");
            assert!(words.contains(name.as_str()), "{name} is not used: remove it from the table");
        }
    }
}
