//! Metrics of the connections to OVN's databases, and of the daemon process.

use super::{counter, gauge, info};
use crate::metrics::exposition::{Family, Samples};
use crate::metrics::observation::{Observation, OvnFacts, ProcessFacts};

pub const OVN: &[Family] = &[
    gauge(
        "weft_ovn_connected",
        &["database"],
        "1 while the connection to the `local` or `southbound` database is ready.",
        |of, to| {
            let Some(ovn) = &of.ovn else { return };
            to.add_flag(&["local"], ovn.is_local_connected);
            to.add_flag(&["southbound"], ovn.is_southbound_connected);
        },
    ),
    gauge(
        "weft_ovn_lag_seconds",
        &[],
        "The age of the oldest change of the southbound database that is not in force; 0 if all \
         are.",
        |of, to| add_ovn(of, to, |ovn| ovn.lag.as_secs_f64()),
    ),
    gauge(
        "weft_ovn_nb_cfg",
        &["stage"],
        "The generation of the network that was `read`, and the one that is `installed`.",
        |of, to| {
            let Some(ovn) = &of.ovn else { return };
            for (stage, number) in [("read", ovn.read_nb_cfg), ("installed", ovn.installed_nb_cfg)]
            {
                if let Some(number) = number {
                    to.add_fraction(&[stage], number as f64);
                }
            }
        },
    ),
    counter(
        "weft_ovn_installations",
        &["result"],
        "Networks put in force (`ok`), and attempts that `failed`.",
        |of, to| {
            let Some(ovn) = &of.ovn else { return };
            to.add(&["ok"], ovn.installed);
            to.add(&["failed"], ovn.failed);
        },
    ),
    gauge(
        "weft_ovn_logical_flows",
        &["state"],
        "Logical flows `in_force`, and those `left_out` because the daemon cannot compile them.",
        |of, to| {
            let Some(ovn) = &of.ovn else { return };
            to.add(&["in_force"], ovn.flows as u64);
            to.add(&["left_out"], ovn.bad_flows as u64);
        },
    ),
    gauge(
        "weft_ovn_lock_held",
        &[],
        "1 if the daemon has the lock of the local database, and not ovs-vswitchd.",
        |of, to| add_ovn(of, to, |ovn| ovn.has_lock.into()),
    ),
    gauge(
        "weft_ovn_network_held",
        &[],
        "1 while the old network stays in force because the southbound database came back empty.",
        |of, to| add_ovn(of, to, |ovn| ovn.holds_network.into()),
    ),
];

pub const DAEMON: &[Family] = &[
    info("weft_build", &["version"], "The version of weft.", |_, to| {
        to.add(&[env!("CARGO_PKG_VERSION")], 1)
    }),
    info(
        "weft_daemon",
        &["host", "datapath", "control_plane"],
        "The host, the datapath (`kernel` or `user`), and where the network comes from (`file` or \
         `ovn`).",
        |of, to| {
            let plane = if of.ovn.is_some() { "ovn" } else { "file" };
            to.add(&[&of.show.host, &of.show.datapath, plane], 1);
        },
    ),
    gauge("weft_uptime_seconds", &[], "Time since the datapath started.", |of, to| {
        to.add_fraction(&[], of.show.uptime_ms as f64 / 1e3);
    }),
    gauge("weft_process_resident_memory_bytes", &[], "Memory in use (RSS).", |of, to| {
        add_process(of, to, |process| process.resident_bytes as f64);
    }),
    gauge(
        "weft_process_resident_memory_peak_bytes",
        &[],
        "The most memory that was ever in use.",
        |of, to| add_process(of, to, |process| process.peak_resident_bytes as f64),
    ),
    gauge("weft_process_virtual_memory_bytes", &[], "Address space.", |of, to| {
        add_process(of, to, |process| process.virtual_bytes as f64);
    }),
    counter("weft_process_cpu_seconds", &[], "Processor time of all threads.", |of, to| {
        add_process(of, to, |process| process.cpu_seconds);
    }),
    gauge("weft_process_threads", &[], "Threads.", |of, to| {
        add_process(of, to, |process| process.threads as f64);
    }),
    gauge("weft_process_open_fds", &[], "Open files.", |of, to| {
        add_process(of, to, |process| process.open_files as f64);
    }),
    gauge("weft_process_max_fds", &[], "How many files may be open.", |of, to| {
        add_process(of, to, |process| process.open_files_limit as f64);
    }),
    gauge(
        "weft_bpf_map_entries",
        &["map"],
        "Entries in use in a map of the eBPF programs. Absent with the user datapath.",
        |of, to| of.show.maps.iter().for_each(|map| to.add(&[&map.name], map.entries)),
    ),
    gauge("weft_bpf_map_max_entries", &["map"], "How many it may have.", |of, to| {
        of.show.maps.iter().for_each(|map| to.add(&[&map.name], map.limit));
    }),
    counter(
        "weft_log_lines_lost",
        &["reason"],
        "Log lines left out: records of ACLs `over_rate`, other messages `limited` because many of \
         their kind came at once, and lines `not_written` because nobody read standard error.",
        |of, to| {
            to.add(&["over_rate"], of.show.log.over_rate);
            to.add(&["limited"], of.show.log.limited);
            to.add(&["not_written"], of.show.log.not_written);
        },
    ),
    gauge(
        "weft_backend_online",
        &["load_balancer", "backend", "port"],
        "1 if the backend of a load balancer gets new connections, 0 if its health checks fail.",
        |of, to| {
            for it in &of.show.health.backends {
                let is_online = u64::from(it.status != "offline");
                to.add(&[&it.balancer, &it.backend.to_string(), &it.port], is_online);
            }
        },
    ),
    counter("weft_health_checks", &[], "Health checks of backends that have begun.", |of, to| {
        to.add(&[], of.show.health.checks);
    }),
    counter("weft_health_check_failures", &[], "Of these, those that have failed.", |of, to| {
        to.add(&[], of.show.health.failures);
    }),
    counter(
        "weft_health_checks_put_off",
        &[],
        "Health checks that were not made, because all source ports or all checks were in use.",
        |of, to| to.add(&[], of.show.health.put_off),
    ),
    counter(
        "weft_health_check_strays",
        &[],
        "Packets to the health checks that answer none of them.",
        |of, to| to.add(&[], of.show.health.strays),
    ),
    info(
        "weft_privileges",
        &["capabilities", "landlock", "seccomp", "no_new_privs"],
        "What the daemon may still do, as in `weft show`.",
        |of, to| {
            let has = &of.show.privileges;
            let flag = |is_on| if is_on { "on" } else { "off" };
            let capabilities = has.capabilities.join(",");
            let (seccomp, no_new_privs) = (flag(has.seccomp), flag(has.no_new_privs));
            to.add(&[&capabilities, &has.landlock, seccomp, no_new_privs], 1);
        },
    ),
    gauge(
        "weft_metrics_collection_seconds",
        &[],
        "How long the daemon took to collect the metrics of this scrape.",
        |of, to| to.add_fraction(&[], of.took.as_secs_f64()),
    ),
    gauge(
        "weft_metrics_left_out_samples",
        &[],
        "Samples left out of this scrape, because a metric has at most 65536.",
        |_, to| to.add(&[], to.left_out()),
    ),
];

fn add_ovn(of: &Observation, to: &mut Samples<'_>, value: impl Fn(&OvnFacts) -> f64) {
    if let Some(ovn) = &of.ovn {
        to.add_fraction(&[], value(ovn));
    }
}

fn add_process(of: &Observation, to: &mut Samples<'_>, value: impl Fn(&ProcessFacts) -> f64) {
    if let Some(process) = &of.process {
        to.add_fraction(&[], value(process));
    }
}
