//! The names of the targets, which are also the names of their corpora.

use crate::{
    actions, coalescing, connections, control, database, execution, expressions, headers, keys,
    megaflows, network, ofctl, offload, openflow, ovn, pins, probes, programs, reassembly,
    services, tunnels,
};

/// Runs a target with one input. Panics if the input reveals a fault.
pub type Body = fn(&[u8]);

/// The target that loads eBPF programs.
pub const NEEDS_ROOT: &str = "bpf_parser";

/// All targets, sorted by name.
pub const ALL: [(&str, Body); 33] = [
    (NEEDS_ROOT, |bytes| _ = programs::parser(bytes)),
    ("coalesce", |bytes| _ = coalescing::list(bytes)),
    ("conntrack", |bytes| _ = connections::list(bytes)),
    ("control_request", |bytes| _ = control::request(bytes)),
    ("dhcp4", |bytes| _ = services::dhcp4(bytes)),
    ("dhcp6", |bytes| _ = services::dhcp6(bytes)),
    ("dns", |bytes| _ = services::dns(bytes)),
    ("execute", |bytes| _ = execution::frame(bytes)),
    ("flow_key", |bytes| _ = keys::frame(bytes)),
    ("geneve", |bytes| _ = tunnels::geneve(bytes)),
    ("gre", |bytes| _ = tunnels::gre(bytes)),
    ("health_answer", |bytes| _ = services::health(bytes)),
    ("ip_reassembly", |bytes| _ = reassembly::fragments(bytes)),
    ("logical_actions", |bytes| _ = actions::text(bytes)),
    ("logical_match", |bytes| _ = expressions::text(bytes)),
    ("megaflow_cache", |bytes| _ = megaflows::steps(bytes)),
    ("network_toml", |bytes| _ = network::file(bytes)),
    ("ofctl_flows", |bytes| _ = ofctl::file(bytes)),
    ("offload", |bytes| _ = offload::frame(bytes)),
    ("openflow_request", |bytes| _ = openflow::request(bytes)),
    ("ovn_dump", |bytes| _ = ovn::dump(bytes)),
    ("ovn_flow_list", |bytes| _ = ovn::list(bytes)),
    ("ovsdb_schema", |bytes| _ = database::schema(bytes)),
    ("ovsdb_stream", |bytes| _ = database::stream(bytes)),
    ("ovsdb_update", |bytes| _ = database::update(bytes)),
    ("pinned_megaflow", |bytes| _ = pins::megaflow(bytes)),
    ("probe", |bytes| _ = probes::frame(bytes)),
    ("router_solicitation", |bytes| _ = services::router(bytes)),
    ("stt", |bytes| _ = tunnels::stt(bytes)),
    ("stt_reassembly", |bytes| _ = reassembly::list(bytes)),
    ("vlan", |bytes| _ = tunnels::tagged(bytes)),
    ("vxlan", |bytes| _ = tunnels::vxlan(bytes)),
    ("wire_frame", |bytes| _ = headers::frame(bytes)),
];

/// The body of the target with this name; `None` if there is none.
pub fn body(name: &str) -> Option<Body> {
    ALL.iter().find(|(target, _)| *target == name).map(|(_, body)| *body)
}
