//! Metrics of megaflows, upcalls, the revalidator, and tracked connections.

use super::{add_reasons, counter, gauge, histogram};
use crate::metrics::Observation;
use crate::metrics::exposition::{Family, Samples};

const NANOSECONDS: f64 = 1e9;

pub const MEGAFLOWS: &[Family] = &[
    gauge(
        "weft_megaflows",
        &[],
        "Megaflows that the switch has recorded; each is in one datapath or in both.",
        |of, to| to.add(&[], of.switch.megaflows),
    ),
    gauge(
        "weft_megaflows_limit",
        &[],
        "How many megaflows there may be (`weft run --megaflows`).",
        |of, to| to.add(&[], of.megaflow_limit as u64),
    ),
    gauge("weft_megaflows_fused", &[], "Fused megaflows of tracked connections.", |of, to| {
        to.add(&[], of.switch.fused);
    }),
    gauge(
        "weft_megaflow_origins",
        &[],
        "Different origins of megaflows: matched flows, and learned state that they read.",
        |of, to| to.add(&[], of.switch.origins),
    ),
    counter("weft_megaflows_installed", &[], "Megaflows installed.", |of, to| {
        to.add(&[], of.switch.put);
    }),
    counter(
        "weft_megaflows_deleted",
        &["reason"],
        "Megaflows deleted: `idle` ones, `unrecorded` ones, and those that are `changed`: \
         wrong after a change, or of a connection that changed.",
        |of, to| {
            let (idle, unrecorded) = (of.switch.idle, of.switch.strangers);
            to.add(&["idle"], idle);
            to.add(&["unrecorded"], unrecorded);
            to.add(&["changed"], of.switch.deleted.saturating_sub(idle + unrecorded));
        },
    ),
    counter(
        "weft_megaflows_vanished",
        &[],
        "Recorded megaflows that the datapath did not have.",
        |of, to| to.add(&[], of.switch.vanished),
    ),
    counter(
        "weft_megaflows_mask_limited",
        &[],
        "Megaflows made exact-match because a limit of masks was reached.",
        |of, to| to.add(&[], of.switch.mask_limited),
    ),
    counter(
        "weft_megaflows_not_installed",
        &["reason"],
        "Packets answered without a megaflow: a `limit` was reached, or the existing megaflow \
         awaits `revalidation`.",
        |of, to| {
            to.add(&["limit"], of.switch.refused);
            to.add(&["revalidation"], of.switch.outdated);
        },
    ),
    counter("weft_megaflows_fusions", &[], "Fused megaflows installed.", |of, to| {
        to.add(&[], of.switch.fusions);
    }),
    counter(
        "weft_megaflows_fusions_ended",
        &[],
        "Fused megaflows deleted because a connection changed.",
        |of, to| to.add(&[], of.switch.fusions_ended),
    ),
    counter(
        "weft_megaflows_fusions_refused",
        &[],
        "Proposals to fuse passes that the program does not allow.",
        |of, to| to.add(&[], of.switch.fusions_refused),
    ),
    gauge(
        "weft_megaflow_cache_entries",
        &[],
        "Megaflows in the datapaths; one that several workers have is counted for each.",
        |of, to| to.add(&[], of.show.megaflows.megaflows),
    ),
    gauge("weft_megaflow_cache_masks", &[], "Different masks of these.", |of, to| {
        to.add(&[], of.show.megaflows.masks);
    }),
    counter("weft_megaflow_lookups", &[], "Packets looked up among megaflows.", |of, to| {
        to.add(&[], of.show.megaflows.lookups);
    }),
    counter(
        "weft_megaflow_hits",
        &["cache"],
        "Packets that found a megaflow: in the `exact` match cache, or by a search of the `masks`.",
        |of, to| {
            to.add(&["exact"], of.show.megaflows.exact_hits);
            to.add(&["masks"], of.show.megaflows.search_hits);
        },
    ),
    counter("weft_megaflow_mask_probes", &[], "Masks searched.", |of, to| {
        to.add(&[], of.show.megaflows.mask_probes);
    }),
];

pub const UPCALLS: &[Family] = &[
    counter("weft_upcalls", &[], "Packets that the switch has decided about.", |of, to| {
        to.add(&[], of.switch.upcalls);
    }),
    counter(
        "weft_upcalls_shared",
        &[],
        "Of these, packets that shared the decision about an earlier one in the same batch.",
        |of, to| to.add(&[], of.switch.reused),
    ),
    histogram(
        "weft_upcall_latency_seconds",
        "The time from a packet's upcall to the answer of the switch.",
        |of, to| to.add_histogram(&of.switch.upcall_latencies_ns, NANOSECONDS),
    ),
    histogram(
        "weft_upcall_wait_seconds",
        "The part of it that the packet waited for a thread of the switch.",
        |of, to| to.add_histogram(&of.show.upcalls.waits_ns, NANOSECONDS),
    ),
    histogram(
        "weft_upcall_queue_length",
        "The length of its port's queue for each packet that began to wait.",
        |of, to| to.add_histogram(&of.show.upcalls.queue_lengths, 1.0),
    ),
    gauge("weft_upcall_queue_packets", &[], "Packets that wait now.", |of, to| {
        to.add(&[], of.show.upcalls.waiting);
    }),
    gauge(
        "weft_upcall_queue_port_limit_packets",
        &[],
        "How many packets of one port may wait. Further ones are dropped as `upcall_queue_full`.",
        |of, to| to.add(&[], of.show.upcalls.port_limit),
    ),
    counter(
        "weft_controller_copies",
        &[],
        "Copies of packets for the controller: answers to health checks.",
        |of, to| to.add(&[], of.switch.controller),
    ),
    counter(
        "weft_controller_copies_lost",
        &[],
        "Copies of packets for the controller that were dropped, because its queue or the upcall queue \
         of their port was full, or because they waited too long.",
        |of, to| to.add(&[], of.switch.controller_lost + of.show.upcalls.copies_lost),
    ),
    counter(
        "weft_path_probes_received",
        &[],
        "Path MTU probes received: requests, and replies to own ones.",
        |of, to| to.add(&[], of.switch.probes),
    ),
    gauge(
        "weft_program_generation",
        &[],
        "The generation of the program; each published program adds 1.",
        |of, to| to.add(&[], of.switch.generation),
    ),
    gauge(
        "weft_learned_entries",
        &[],
        "Entries learned from packets: stations, MAC addresses of IP addresses, clients with \
         affinity, and next hops.",
        |of, to| to.add(&[], of.switch.learned),
    ),
    counter(
        "weft_learn_events",
        &["verdict"],
        "Learn events: `accepted`, contradicts a `configured` entry, or a limit of the port \
         (`port_full`) or of the table (`table_full`) was reached.",
        |of, to| {
            to.add(&["accepted"], of.switch.learn_accepted);
            to.add(&["configured"], of.switch.learn_refused_configured);
            to.add(&["port_full"], of.switch.learn_refused_port_full);
            to.add(&["table_full"], of.switch.learn_refused_table_full);
        },
    ),
    counter(
        "weft_learn_events_untold",
        &[],
        "Learn events that no other host is told of, because too many were waiting.",
        |of, to| to.add(&[], of.switch.learn_unreported),
    ),
    counter(
        "weft_held_packets",
        &["fate"],
        "Packets whose next hop had no known MAC address: `held`, `sent` once it was known, or \
         `lost` because it was not known in time or newer packets took their place.",
        |of, to| {
            to.add(&["held"], of.switch.held);
            to.add(&["sent"], of.switch.held_sent);
            to.add(&["lost"], of.switch.held_lost);
        },
    ),
];

pub const REVALIDATOR: &[Family] = &[
    histogram(
        "weft_revalidator_sweep_duration_seconds",
        "The duration of each sweep over all megaflows.",
        |of, to| to.add_histogram(&of.switch.sweeps_ns, NANOSECONDS),
    ),
    gauge(
        "weft_revalidator_longest_sweep_seconds",
        &[],
        "The duration of the longest sweep.",
        |of, to| to.add_fraction(&[], of.switch.longest_sweep_ms as f64 / 1e3),
    ),
    histogram(
        "weft_revalidator_revalidation_duration_seconds",
        "The duration of each revalidation after a change.",
        |of, to| to.add_histogram(&of.switch.revalidations_ns, NANOSECONDS),
    ),
    counter(
        "weft_revalidator_megaflows",
        &[],
        "Megaflows translated again after a change.",
        |of, to| to.add(&[], of.switch.revalidated),
    ),
    counter(
        "weft_self_check_megaflows",
        &[],
        "Megaflows that the self-check compared with the program.",
        |of, to| to.add(&[], of.switch.self_checks),
    ),
    counter(
        "weft_self_check_faults",
        &[],
        "Of these, wrong ones, which it deleted. Each is a fault to report.",
        |of, to| to.add(&[], of.switch.self_check_faults),
    ),
];

pub const CONNECTIONS: &[Family] = &[
    gauge("weft_connections", &[], "Tracked connections.", |of, to| {
        to.add(&[], of.connections.connections.into());
    }),
    gauge("weft_connections_limit", &[], "How many there may be.", |of, to| {
        to.add(&[], of.connections.limit.into());
    }),
    counter("weft_connections_committed", &[], "Connections committed.", |of, to| {
        to.add(&[], of.connections.committed);
    }),
    counter(
        "weft_connections_ended",
        &["reason"],
        "Connections that `expired` or that a RST ended, that a packet of another connection \
         `replaced`, or that were `flushed` by request.",
        |of, to| {
            to.add(&["expired"], of.connections.expired);
            to.add(&["replaced"], of.connections.replaced);
            to.add(&["flushed"], of.connections.flushed);
        },
    ),
    counter(
        "weft_connections_not_saved",
        &[],
        "Times that a connection could not be saved for the next daemon.",
        |of, to| to.add(&[], of.connections.not_saved),
    ),
    counter("weft_connections_refused", &["reason"], "Refused commits.", |of, to| {
        add_reasons(to, &of.connections.refused);
    }),
    counter(
        "weft_connection_invalid_packets",
        &["reason"],
        "Packets that are invalid for their connection.",
        |of, to| add_reasons(to, &of.connections.invalid),
    ),
    gauge(
        "weft_zone_connections",
        &["zone"],
        "Connections of a zone: its user as in `weft ct`, or its number. Zones without \
         connections are absent.",
        |of, to| add_use(of, to, "zone", false),
    ),
    gauge("weft_zone_connections_limit", &["zone"], "How many it may have.", |of, to| {
        add_use(of, to, "zone", true);
    }),
    gauge(
        "weft_port_connections",
        &["port"],
        "Connections that packets of a port have opened. Ports without connections are absent.",
        |of, to| add_use(of, to, "port", false),
    ),
    gauge("weft_port_connections_limit", &["port"], "How many it may have.", |of, to| {
        add_use(of, to, "port", true);
    }),
];

/// Adds the number of connections of each zone or port, or its limit if it has one.
fn add_use(of: &Observation, to: &mut Samples<'_>, what: &str, is_limit: bool) {
    for row in of.connection_use.iter().filter(|row| row.what == what) {
        let value = if is_limit { row.limit } else { Some(row.connections) };
        if let Some(value) = value {
            to.add(&[&row.name], value.into());
        }
    }
}
